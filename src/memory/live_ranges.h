#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"

namespace braid {

/// The order that streams and events give the tasks of a program (happens-before).
/// Vector clocks (Mattern 1989), kept only where they change, at tasks that wait: O(waits x
/// streams) memory.
class TaskOrder {
 public:
  static constexpr uint32_t kNever = UINT32_MAX;

  /// Throws InternalError if a task waits for an event that no earlier task records.
  explicit TaskOrder(const Program& program);

  size_t num_streams() const { return num_streams_; }
  /// Tasks of the stream, as program positions, ascending.
  std::span<const uint32_t> tasks_of(size_t stream) const { return tasks_[stream]; }
  /// The number of tasks of `of` that are known to have finished before task `position` of `stream`
  /// starts.
  uint32_t num_finished(size_t of, size_t stream, uint32_t position) const;
  /// First position of `stream` at which `count` tasks of `of` are known to have finished; kNever
  /// if there is none.
  uint32_t first_position_after(size_t of, uint32_t count, size_t stream) const;
  /// One possible order of execution, by [stream][position]: the next task always comes from the
  /// first stream in `priority` whose next task has nothing left to wait for.
  std::vector<std::vector<uint32_t>> run_in_order(std::span<const size_t> priority) const;

 private:
  void wait_for_events(const Program& program, const Task& task, uint32_t position);
  bool may_run(size_t stream, size_t knot, std::span<const uint32_t> num_done) const;

  /// The place where an event was recorded, and the number of knots of its stream at that moment.
  struct RecordedEvent {
    uint32_t stream = kNever;
    uint32_t position = 0;
    uint32_t knot = 0;
  };

  size_t num_streams_;
  std::vector<RecordedEvent> events_;  // by EventId
  std::vector<std::vector<uint32_t>> tasks_;
  std::vector<std::vector<uint32_t>> knots_;   // [stream]: positions at which its clock grows
  std::vector<std::vector<uint32_t>> clocks_;  // [stream * num_streams_ + of], parallel to knots_
};

/// The live range of each step buffer of a program. A buffer's memory is taken from a queue,
/// usually the stream of its first access. Two buffers interfere unless all accesses of one happen
/// before all accesses of the other. O(buffers x queues) memory, near-linear time.
class LiveRanges {
 public:
  /// The first and the last access of one buffer on one stream, as positions in the stream.
  struct Accesses {
    uint32_t stream;
    uint32_t first;
    uint32_t last;
    uint32_t next;  ///< index of the entry of the same buffer on another stream, or kNone
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kNever = TaskOrder::kNever;

  LiveRanges(const Program& program, const TaskOrder& order);

  size_t num_buffers() const { return first_task_.size(); }
  size_t num_queues() const { return num_queues_; }
  /// False for persistent buffers and for buffers that no task touches: they take no step memory.
  bool is_used(size_t buffer) const { return first_task_[buffer] != kNone; }

  /// The queue of the buffer, and the position in it at which the buffer is first needed. Positions
  /// only grow with program order.
  uint32_t queue(size_t buffer) const { return queue_[buffer]; }
  uint32_t start(size_t buffer) const { return start_[buffer]; }
  /// First position of the queue at which the buffer is free again; kNever if there is none.
  uint32_t end(size_t buffer, size_t queue) const { return ends_[buffer * num_queues_ + queue]; }

  /// In program order: the first task that touches the buffer, and the first task from which every
  /// queue may reuse it (number of tasks if none). Buffers with disjoint [first_task, end_task) do
  /// not interfere; others may interfere.
  uint32_t first_task(size_t buffer) const { return first_task_[buffer]; }
  uint32_t end_task(size_t buffer) const { return end_task_[buffer]; }

  bool interfere(size_t a, size_t b) const { return !comes_after(a, b) && !comes_after(b, a); }

  /// Head of the chain of entries of a buffer in `accesses`; kNone if it is not used.
  uint32_t first_accesses(size_t buffer) const { return heads_[buffer]; }
  const Accesses& accesses(uint32_t index) const { return accesses_[index]; }

 private:
  /// All accesses of `a` happen after all of `b`.
  bool comes_after(size_t a, size_t b) const { return start_[a] >= end(b, queue_[a]); }

  void collect_accesses(const Program& program);
  void choose_queues(const TaskOrder& order);
  void find_ends(const TaskOrder& order);
  uint32_t end_on_stream(size_t buffer, size_t stream, const TaskOrder& order) const;
  bool happens_after_another(const Accesses& access, uint32_t head, const TaskOrder& order) const;

  size_t num_queues_ = 0;
  uint32_t num_tasks_ = 0;
  std::vector<uint32_t> heads_;
  std::vector<Accesses> accesses_;
  std::vector<uint32_t> first_task_;
  std::vector<uint32_t> end_task_;
  std::vector<uint32_t> queue_;
  std::vector<uint32_t> start_;
  std::vector<uint32_t> ends_;
  std::vector<uint32_t> queue_streams_;  // stream of each queue; kNone: the joint queue
  std::vector<uint32_t> joint_streams_;  // streams on which buffers of the joint queue start
};

}  // namespace braid
