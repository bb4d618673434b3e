#include "passes/gradients/gradient_tasks.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace braid {
namespace {

BufferRole role_of(const Program& program, const BufferRange& range) {
  return program.buffers[range.buffer.index()].role;
}

bool is_gradient(BufferRole role) {
  return role == BufferRole::kGrad || role == BufferRole::kMainGrad;
}

}  // namespace

bool communicates_gradients(const Program& program, const Task& task) {
  if (task.label.phase != Phase::kComm) {
    return false;
  }
  const auto operands = program.operands_of(task);
  const auto& specs = program.spec(task).operands;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (writes(specs[i].access) && is_gradient(role_of(program, operands[i]))) {
      return true;
    }
  }
  return false;
}

bool converts_gradients(const Program& program, const Task& task) {
  const auto operands = program.operands_of(task);
  const auto& specs = program.spec(task).operands;
  return task.label.phase == Phase::kWgrad &&
         std::ranges::any_of(
             specs, [](const OperandSpec& operand) { return operand.access == Access::kRead; }) &&
         std::ranges::all_of(operands, [&](const BufferRange& range) {
           return is_gradient(role_of(program, range));
         });
}

std::vector<bool> groups_with_activations(const Program& program) {
  std::vector<bool> carries(program.groups.size());
  for (const Task& task : program.tasks) {
    const std::optional<GroupId> group = group_of(program, program.spec(task));
    if (group && !carries[group->index()]) {
      carries[group->index()] =
          std::ranges::any_of(program.operands_of(task), [&](const BufferRange& range) {
            return role_of(program, range) == BufferRole::kActivation;
          });
    }
  }
  return carries;
}

}  // namespace braid
