#include "passes/overlap_grad_reduce.h"

#include <fmt/core.h>

#include <algorithm>

#include "ir/dependencies.h"

namespace braid {
namespace {

bool communicates_gradients(const Program& program, const Task& task) {
  if (task.label.phase != Phase::kComm) {
    return false;
  }
  const auto operands = program.operands_of(task);
  const auto& specs = program.spec(task).operands;
  for (size_t i = 0; i < operands.size(); ++i) {
    const BufferRole role = program.buffers[operands[i].buffer.index()].role;
    if (writes(specs[i].access) && (role == BufferRole::kGrad || role == BufferRole::kMainGrad)) {
      return true;
    }
  }
  return false;
}

/// For each task its slot: 0 is before all tasks that stay, slot i + 1 begins with task i. A task
/// that stays has its own slot, one that moves that of the last task it depends on.
std::vector<uint32_t> find_slots(const Program& program, const std::vector<bool>& moves) {
  const DependencyGraph dependencies = build_dependencies(program);
  std::vector<uint32_t> slots(program.tasks.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!moves[i]) {
      slots[i] = static_cast<uint32_t>(i) + 1;
      continue;
    }
    for (const TaskId predecessor : dependencies.of(TaskId(i))) {
      slots[i] = std::max(slots[i], slots[predecessor.index()]);
    }
  }
  return slots;
}

/// Stable counting sort of the tasks by slot. The task that stays is the first of its slot, because
/// those that move into it depend on it, directly or not, and so stand behind it.
std::vector<TaskId> order_by_slot(const std::vector<uint32_t>& slots) {
  std::vector<uint32_t> next(slots.size() + 2);
  for (const uint32_t slot : slots) {
    ++next[slot + 1];
  }
  for (size_t i = 1; i < next.size(); ++i) {
    next[i] += next[i - 1];
  }
  std::vector<TaskId> order(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    order[next[slots[i]]++] = TaskId(i);
  }
  return order;
}

/// Tasks that do not stand in their slot yet.
int64_t count_moves(const std::vector<uint32_t>& slots, const std::vector<bool>& moves) {
  int64_t num_moved = 0;
  uint32_t slot = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!moves[i]) {
      slot = slots[i];
    }
    num_moved += slots[i] != slot ? 1 : 0;
  }
  return num_moved;
}

}  // namespace

PassResult overlap_grad_reduce(Program program) {
  std::vector<bool> moves(program.tasks.size());
  for (size_t i = 0; i < moves.size(); ++i) {
    moves[i] = communicates_gradients(program, program.tasks[i]);
  }
  const std::vector<uint32_t> slots = find_slots(program, moves);
  const int64_t num_moved = count_moves(slots, moves);
  PassReport report{num_moved > 0, num_moved,
                    fmt::format("moved {} of {} gradient communications", num_moved,
                                std::ranges::count(moves, true))};
  if (num_moved == 0) {
    return {std::move(program), std::move(report)};
  }
  return {reorder_tasks(program, order_by_slot(slots)), std::move(report)};
}

}  // namespace braid
