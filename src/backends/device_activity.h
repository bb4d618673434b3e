#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/program.h"
#include "trace/timeline.h"

/// Converts the records of a device's profiler to the timeline of a program's tasks. Independent of
/// the profiler and the device: backends/cuda/cupti_session.h makes the records.
namespace braid {

/// One kernel, copy or fill that a device ran.
struct DeviceActivity {
  uint32_t name = 0;     ///< index into ActivityLog::names
  int64_t start_ns = 0;  ///< on the profiler's clock; 0, or an end before the start: unknown
  int64_t end_ns = 0;
  uint64_t graph_node = 0;  ///< id of its graph node; 0: not in a graph
  uint32_t call = 0;        ///< id of the host call that enqueued it
};

/// A host call that enqueued work of a task.
struct CallOfTask {
  uint32_t call = 0;
  uint32_t task = 0;  ///< position in the program
};

/// Everything that the device did in one step.
struct ActivityLog {
  std::vector<std::string> names;
  std::vector<DeviceActivity> activities;  ///< in any order
  std::vector<CallOfTask> calls;           ///< for work that is not in a graph
  int64_t num_lost = 0;                    ///< records that the profiler dropped for lack of memory
};

/// A task that the host timed, on the profiler's clock: for work that leaves no record.
struct HostTimedTask {
  uint32_t task = 0;  ///< position in the program
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

/// Adds the tasks as activities with this name, with call ids that are unused in `log`.
void add_host_timed(std::span<const HostTimedTask> tasks, std::string_view name, ActivityLog& log);

/// A node of a captured graph, by the profiler's id, and the task that it was captured for.
struct NodeOfTask {
  uint64_t node = 0;
  uint32_t task = 0;
};

/// A node that was made as a copy of another.
struct NodeClone {
  uint64_t original = 0;
  uint64_t node = 0;
};

using TaskOfNode = std::unordered_map<uint64_t, uint32_t>;

/// The tasks of the nodes that run: captured nodes that were not cloned, and clones, also indirect
/// ones, of captured nodes. `clones` are in the order in which they were made.
TaskOfNode tasks_of_nodes(std::span<const NodeOfTask> captured, std::span<const NodeClone> clones);

/// A rank that records the activities of its device.
struct ActivityOwner {
  int device = 0;
  const TaskOfNode* nodes = nullptr;  ///< of the graph that it launched; null: it has none
};

/// Calls `use` with the index in `owners` of each owner of an activity of `device`: if the graph of
/// an owner on another device contains the node, all owners whose graph contains it; otherwise the
/// owners on `device`. So a copy between devices belongs to its rank, whichever device the profiler
/// reports for it.
void for_each_owner(std::span<const ActivityOwner> owners, int device, uint64_t graph_node,
                    const std::function<void(size_t owner)>& use);

/// The step recorded in `log`. Time 0 is the start of its first activity, and `clock_origin_ns` is
/// that time on the profiler's clock, which all devices of a host share. A task runs from the start
/// of its first activity to the end of its last one. A task without activities takes no time, when
/// everything that it waits for has ended. Activities of no task become kernels of no task.
///
/// The clocks of a device are accurate to some nanoseconds, so a task may appear to start before
/// the tasks that it waits for have ended. Its start is then moved to their end, since the order is
/// certain. RankTimeline::remark says if this moved any task, which activities have no task or no
/// times, how many records the profiler lost, and which tasks of `task_of_node` left no record.
/// `kernels` have the measured times.
RankTimeline timeline_of_activities(const Program& program, const ActivityLog& log,
                                    const TaskOfNode& task_of_node);

}  // namespace braid
