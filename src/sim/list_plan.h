#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "ir/dependencies.h"
#include "parallel/rank_calls.h"
#include "sim/cost_model.h"
#include "sim/sim_plan.h"

namespace braid {

/// The rule for when a task may begin, in addition to its dependencies.
enum class ListRole : uint8_t {
  kSpine,  ///< on the compute stream, in program order
  kFloat,  ///< on the compute stream, anywhere: weight gradients
  kOrder,  ///< on the compute stream, anywhere, without work: transfers memory between streams
  kSide,   ///< on another stream
};

/// Rows of numbers, concatenated.
struct ListRows {
  std::vector<uint32_t> begin;  ///< by row, and one more entry
  std::vector<uint32_t> values;

  std::span<const uint32_t> operator[](size_t row) const {
    return {values.data() + begin[row], values.data() + begin[row + 1]};
  }
  size_t size() const { return begin.size() - 1; }
};

/// Whether the buffer is a step buffer on the device.
bool takes_step_memory(const Buffer& buffer);

/// By task: bytes of such buffers that are live while it runs, if tasks run one after the other.
std::vector<int64_t> live_bytes_in_order(const Program& program);

/// The facts that list scheduling needs about the programs, computed once. A node is a task of one
/// of the programs, numbered program by program; a lane is a stream of one program; a meeting is
/// one call, which all of its ends (nodes) begin together.
class ListPlan {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  /// A part of the spine that is one job or a part of one: a forward or a backward of a microbatch
  /// through a virtual stage.
  struct Job {
    uint32_t begin = 0;  ///< index into `spine`
    uint32_t end = 0;
    int64_t peak_bytes = 0;  ///< maximum of live bytes from its first to its last task in program
                             ///< order
  };
  struct ProgramFacts {
    const Program* program = nullptr;
    uint32_t first_node = 0;
    uint32_t first_lane = 0;
    uint32_t first_buffer = 0;
    uint32_t compute_lane = kNone;  ///< the first lane of kind compute
    uint32_t spine_begin = 0;       ///< index into `spine`
    uint32_t spine_end = 0;
    uint32_t first_job = 0;  ///< index into `jobs`
    uint32_t num_jobs = 0;
  };

  /// `calls` must outlive the plan.
  ListPlan(const RankCalls& calls, const CostModel& model,
           const std::vector<std::vector<int64_t>>& spec_ns);

  const std::vector<ProgramFacts>& programs() const { return programs_; }
  size_t num_nodes() const { return ns_.size(); }
  size_t num_lanes() const { return num_lanes_; }
  size_t num_buffers() const { return buffer_bytes_.size(); }

  uint32_t program_of(uint32_t node) const { return program_of_[node]; }
  uint32_t task_of(uint32_t node) const { return node - programs_[program_of_[node]].first_node; }
  const Task& task(uint32_t node) const {
    return programs_[program_of_[node]].program->tasks[task_of(node)];
  }
  ListRole role(uint32_t node) const { return roles_[node]; }
  SimUnit unit(uint32_t node) const { return units_[node]; }
  uint32_t lane(uint32_t node) const {
    return programs_[program_of_[node]].first_lane + task(node).stream.value;
  }
  uint32_t meeting(uint32_t node) const { return meeting_of_[node]; }  ///< kNone: it has no partner
  /// Duration; for a communication, the longest of its ends.
  int64_t ns(uint32_t node) const { return ns_[node]; }
  /// The longest path from the begin of the node to the end of the step. Paths include the order of
  /// the spine and the order of calls of data ranks that the streams do not give.
  int64_t level(uint32_t node) const { return level_[node]; }
  /// The same, with calls of data ranks one after the other in program order: many gradients at the
  /// end of a step delay each other.
  int64_t chained_level(uint32_t node) const { return chained_level_[node]; }

  const ListRows& meetings() const { return meetings_; }
  const ListRows& predecessors() const { return predecessors_; }
  const ListRows& successors() const { return successors_; }
  const std::vector<uint32_t>& spine() const { return spine_; }
  const std::vector<Job>& jobs() const { return jobs_; }
  /// 0 for buffers that take no step memory on the device.
  int64_t buffer_bytes(uint32_t buffer) const { return buffer_bytes_[buffer]; }
  /// The number of operands in this buffer.
  uint32_t num_uses(uint32_t buffer) const { return num_uses_[buffer]; }
  /// The first task that uses it in program order.
  uint32_t first_task(uint32_t buffer) const { return first_task_[buffer]; }

 private:
  void add_program(const RankCalls& calls, uint32_t program);
  void price(const RankCalls& calls, const CostModel& model,
             const std::vector<std::vector<int64_t>>& spec_ns);
  void find_meetings(const RankCalls& calls);
  void price_meetings();
  void note_calls(const ProgramFacts& facts, const ProgramCalls& calls,
                  const ProgramCalls::Sequence& sequence, uint32_t first_meeting);
  void find_roles(const ProgramFacts& facts);
  void find_spine(ProgramFacts& facts);
  void find_uses(const ProgramFacts& facts);
  void find_job_peaks(const ProgramFacts& facts);
  void float_hand_overs(const ProgramFacts& facts, const DependencyGraph& graph);
  void add_edges(const ProgramFacts& facts, const DependencyGraph& graph);
  void find_levels();

  /// Order between nodes that do not depend on each other.
  struct Chains {
    std::vector<uint32_t> next;    // by node, or kNone
    std::vector<uint32_t> before;  // the inverse of `next`

    void link(uint32_t node, uint32_t behind) {
      next[node] = behind;
      before[behind] = node;
    }
  };
  bool chain_data_calls(const ProgramFacts& facts, Chains& chains) const;
  std::vector<int64_t> levels_with(const Chains& chains) const;

  std::vector<ProgramFacts> programs_;
  std::vector<uint32_t> program_of_;  // by node
  std::vector<int64_t> ns_;
  std::vector<int64_t> level_;
  std::vector<int64_t> chained_level_;
  std::vector<SimUnit> units_;
  std::vector<ListRole> roles_;
  std::vector<uint32_t> meeting_of_;
  std::unordered_map<uint32_t, uint32_t> floats_with_;  // by node of an undefine: the task with
                                                        // which it floats
  std::unordered_map<uint32_t, uint32_t> call_before_;  // by node, if streams do not give the order
  ListRows meetings_;
  ListRows predecessors_;
  ListRows successors_;
  std::vector<uint32_t> spine_;
  std::vector<Job> jobs_;
  std::vector<int64_t> buffer_bytes_;  // by buffer of each program
  std::vector<uint32_t> num_uses_;
  std::vector<uint32_t> first_task_;
  size_t num_lanes_ = 0;
};

}  // namespace braid
