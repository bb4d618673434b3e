#include "passes/remove_identities.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/op.h"
#include "passes/pipeline_options.h"

namespace braid {
namespace {

bool is_alone(const Program& program, const OpSpec& spec) {
  const std::optional<GroupId> group = group_of(program, spec);
  return group && program.groups[group->index()].ranks.size() == 1;
}

/// A collective from x to y in a group of one rank is a copy.
bool is_collective_of_one(const Program& program, const OpSpec& spec) {
  const Communication* const communication =
      is_alone(program, spec) ? communication_of(spec) : nullptr;
  return communication != nullptr && !communication->is_message();
}

/// An op that belongs to a group only because its gradient is summed there.
bool is_identity(const Program& program, const OpSpec& spec) {
  return group_of(program, spec).has_value() && value_rule(spec) == ValueRule::kMoved;
}

/// The task works in place, so removing it changes no other task.
bool is_nothing(const Program& program, const Task& task) {
  const OpSpec& spec = program.spec(task);
  const auto operands = program.operands_of(task);
  return (communicates_as(spec, CommOp::kAllReduce) && operands.size() == 1 &&
          is_alone(program, spec)) ||
         (operands.size() == 2 && operands[0] == operands[1] &&
          value_rule(spec) == ValueRule::kMoved);
}

/// A task x -> y that leaves equal contents and is not an explicit copy.
bool is_forwarding(const Program& program, const Task& task) {
  const OpSpec& spec = program.spec(task);
  return spec.operands.size() == 2 && spec.operands[0].access == Access::kRead &&
         spec.operands[1].access == Access::kWrite &&
         (is_identity(program, spec) || is_collective_of_one(program, spec));
}

/// One operand of a task.
struct Use {
  size_t task = 0;
  size_t operand = 0;  // index into Program::operands
};

/// The reads and writes of each buffer, in program order.
class Uses {
 public:
  explicit Uses(const Program& program)
      : reads_(program.buffers.size()), writes_(program.buffers.size()) {
    for (size_t i = 0; i < program.tasks.size(); ++i) {
      const Task& task = program.tasks[i];
      const OpSpec& spec = program.spec(task);
      for (size_t k = 0; k < spec.operands.size(); ++k) {
        const Use use{i, task.operands_begin + k};
        const size_t buffer = program.operands[use.operand].buffer.index();
        if (reads(spec.operands[k].access)) {
          reads_[buffer].push_back(use);
        }
        if (writes(spec.operands[k].access)) {
          writes_[buffer].push_back(use);
        }
      }
    }
  }

  const std::vector<Use>& reads_of(BufferId buffer) const { return reads_[buffer.index()]; }
  const std::vector<Use>& writes_of(BufferId buffer) const { return writes_[buffer.index()]; }

  /// Whether a task behind `first`, up to and including `last`, writes some of the range.
  bool is_written(const Program& program, const BufferRange& range, size_t first,
                  size_t last) const {
    const std::vector<Use>& list = writes_of(range.buffer);
    const auto behind =
        std::upper_bound(list.begin(), list.end(), first,
                         [](size_t task, const Use& use) { return task < use.task; });
    return std::any_of(behind, list.end(), [&](const Use& use) {
      return use.task <= last && program.operands[use.operand].overlaps(range);
    });
  }

 private:
  std::vector<std::vector<Use>> reads_;  // by buffer
  std::vector<std::vector<Use>> writes_;
};

bool is_readable_instead(const Program& program, const Uses& uses, size_t task,
                         const BufferRange& x, const BufferRange& y) {
  const Buffer& from = program.buffers[x.buffer.index()];
  const Buffer& to = program.buffers[y.buffer.index()];
  const std::vector<Use>& readers = uses.reads_of(y.buffer);
  const bool is_only_write = uses.writes_of(y.buffer).size() == 1;
  const bool is_whole = y.begin == 0 && y.end == to.num_elems();
  const bool is_before_readers = readers.empty() || readers.front().task > task;
  return to.lifetime == Lifetime::kStep && from.placement == to.placement &&
         from.dtype == to.dtype && is_only_write && is_whole && is_before_readers &&
         (readers.empty() || !uses.is_written(program, x, task, readers.back().task));
}

/// Redirects all readers of the task's result to its source. Returns false if that is not possible.
/// Earlier tasks have been redirected already, so chains of identities lead to the first source.
bool forward_source(Program& program, const Uses& uses, size_t task) {
  const BufferRange x = program.operands_of(program.tasks[task])[0];
  const BufferRange y = program.operands_of(program.tasks[task])[1];
  if (!is_readable_instead(program, uses, task, x, y)) {
    return false;
  }
  for (const Use& reader : uses.reads_of(y.buffer)) {
    BufferRange& range = program.operands[reader.operand];
    range = {x.buffer, x.begin + range.begin, x.begin + range.end};
  }
  return true;
}

}  // namespace

PassResult remove_identities(Program program) {
  const size_t num_before = program.tasks.size();
  const bool has_forwarding =
      std::ranges::any_of(program.tasks, [&](const Task& t) { return is_forwarding(program, t); });
  const Uses uses(has_forwarding ? program : Program{});
  std::vector<TaskId> kept;
  kept.reserve(num_before);
  for (size_t i = 0; i < num_before; ++i) {
    const Task& task = program.tasks[i];
    const bool is_removed = is_nothing(program, task) ||
                            (is_forwarding(program, task) && forward_source(program, uses, i));
    if (!is_removed) {
      kept.emplace_back(i);
    }
  }
  const auto num_removed = static_cast<int64_t>(num_before - kept.size());
  PassReport report{num_removed > 0, num_removed,
                    fmt::format("removed {} of {} tasks", num_removed, num_before)};
  if (num_removed == 0) {
    return {std::move(program), std::move(report)};
  }
  return {select_tasks(program, kept), std::move(report)};
}

Pass remove_identities_pass() {
  return {.name = "remove_identities",
          .summary =
              "Removes sums over groups of one rank, copies of a range onto itself, and identity "
              "tasks.",
          .run = run_of(remove_identities)};
}

}  // namespace braid
