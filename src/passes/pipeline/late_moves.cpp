#include "passes/pipeline/late_moves.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ir/dependencies.h"
#include "ops/op.h"
#include "passes/rearrange.h"

namespace braid {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

bool may_move_along(const Program& program, const Task& task) {
  return task.label.phase == Phase::kWgrad ||
         (task.label.phase == Phase::kComm && !is_message(program.spec(task)));
}

struct LateMoves {
  std::vector<TaskId> order;  // of all tasks
  int64_t num_moved = 0;      // requested moves that are made
  int64_t num_stuck = 0;      // requested moves that are not made
};

class LateMover {
 public:
  LateMover(const Program& program, std::span<const LateMove> moves)
      : program_(program),
        dependencies_(build_dependencies(program)),
        behind_(program.tasks.size(), kNone) {
    for (const LateMove& move : moves) {
      check(move.task < move.behind && move.behind.value < program.tasks.size() &&
                may_move_along(program, program.tasks[move.task.index()]),
            "task #{} cannot wait for task #{}", move.task.value, move.behind.value);
      behind_[move.task.index()] = move.behind.value;
    }
  }

  LateMoves run() {
    leave_stuck_ones();
    take_dependents_along();
    result_.order.resize(behind_.size());
    for (uint32_t task = 0; task < behind_.size(); ++task) {
      result_.order[task] = TaskId(task);
    }
    std::ranges::stable_sort(result_.order, {}, [&](TaskId task) { return place(task.value); });
    if (std::ranges::is_sorted(result_.order)) {
      result_.num_moved = 0;  // the tasks are already in place
    }
    return std::move(result_);
  }

 private:
  /// Sort key. A task that stays comes before the tasks that move behind it.
  uint64_t place(uint32_t task) const {
    return behind_[task] == kNone ? uint64_t{task} * 2 : uint64_t{behind_[task]} * 2 + 1;
  }

  void leave_stuck_ones() {
    // By task: the first later task that depends on it and may not move with it.
    std::vector<uint32_t> obstacle(behind_.size(), kNone);
    for (size_t i = behind_.size(); i-- > 0;) {
      const auto task = static_cast<uint32_t>(i);
      const uint32_t for_earlier =
          may_move_along(program_, program_.tasks[task]) ? obstacle[task] : task;
      for (const TaskId earlier : dependencies_.of(TaskId(task))) {
        uint32_t& first = obstacle[earlier.index()];
        first = std::min(first, for_earlier);
      }
    }
    for (size_t task = 0; task < behind_.size(); ++task) {
      if (behind_[task] != kNone && obstacle[task] <= behind_[task]) {
        behind_[task] = kNone;
        ++result_.num_stuck;
      } else if (behind_[task] != kNone) {
        ++result_.num_moved;
      }
    }
  }

  void take_dependents_along() {
    for (uint32_t task = 0; task < behind_.size(); ++task) {
      for (const TaskId earlier : dependencies_.of(TaskId(task))) {
        const uint32_t target = behind_[earlier.index()];
        if (target != kNone && target >= (behind_[task] == kNone ? task : behind_[task])) {
          behind_[task] = target;
        }
      }
    }
  }

  const Program& program_;
  DependencyGraph dependencies_;
  std::vector<uint32_t> behind_;  // by task; kNone: it stays
  LateMoves result_;
};

}  // namespace

PassResult move_late(Program program, std::span<const LateMove> moves, std::string_view what) {
  const LateMoves late = moves.empty() ? LateMoves() : LateMover(program, moves).run();
  std::string summary = fmt::format("moved {} {}", late.num_moved, what);
  if (late.num_stuck > 0) {
    summary += fmt::format("; {} stay, because an earlier task needs them", late.num_stuck);
  }
  if (late.num_moved == 0) {
    return {std::move(program), {false, 0, std::move(summary)}};
  }
  return {with_tasks_in_order(std::move(program), late.order),
          {true, late.num_moved, std::move(summary)}};
}

}  // namespace braid
