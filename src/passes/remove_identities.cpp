#include "passes/remove_identities.h"

#include <fmt/core.h>

namespace braid {
namespace {

bool is_alone(const Program& program, const OpSpec& spec) {
  const std::optional<GroupId> group = group_of(program, spec);
  return group && program.groups[group->index()].ranks.size() == 1;
}

bool is_identity(const Program& program, const Task& task) {
  const OpSpec& spec = program.spec(task);
  if (spec.op == "all_reduce") {
    return is_alone(program, spec);
  }
  const auto operands = program.operands_of(task);
  return spec.op == "copy" && operands.size() == 2 && operands[0] == operands[1];
}

}  // namespace

PassResult remove_identities(Program program) {
  const auto num_before = static_cast<int64_t>(program.tasks.size());
  std::vector<TaskId> kept;
  kept.reserve(program.tasks.size());
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    if (!is_identity(program, program.tasks[i])) {
      kept.emplace_back(i);
    }
  }
  const int64_t num_removed = num_before - static_cast<int64_t>(kept.size());
  PassReport report{num_removed > 0, num_removed,
                    fmt::format("removed {} of {} tasks", num_removed, num_before)};
  if (num_removed == 0) {
    return {std::move(program), std::move(report)};
  }
  return {select_tasks(program, kept), std::move(report)};
}

}  // namespace braid
