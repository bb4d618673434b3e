#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"
#include "ops/op.h"
#include "passes/analysis/step_values.h"
#include "passes/analysis/twins.h"
#include "passes/memory/recompute.h"

namespace braid {

enum class Redo : uint8_t {
  kNothing,
  kTask,    ///< the whole task
  kReplay,  ///< all results but one, from that one, by the op's ReplayRule
};

/// Calls `visit(operand, is_result)` for each operand of a task as it is repeated, in order. A
/// repeated task has no tally.
/// `operand` is its position among the task's own operands; `is_result` says whether it is made
/// again.
template <class Visit>
void for_each_repeated_operand(const OpSpec& spec, Redo redo, Visit&& visit) {
  if (redo == Redo::kReplay) {
    const std::vector<size_t> operands = find_replay(spec)->operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      visit(operands[i], i > 0 && writes(spec.operands[operands[i]].access));
    }
    return;
  }
  const size_t num_operands = spec.operands.size() - (has_tally(spec) ? 1 : 0);
  for (size_t i = 0; i < num_operands; ++i) {
    visit(i, writes(spec.operands[i].access));
  }
}

/// What to recompute. The program is not rewritten yet.
struct RecomputePlan {
  std::vector<Redo> redo;           ///< by task: how to repeat it, if needed
  std::vector<bool> is_recomputed;  ///< by buffer: the backward reads a recomputed copy
  int64_t bytes_kept_less = 0;      ///< bytes no longer kept, over all blocks of the step
};

/// Decides task by task in forward order, so that a task's inputs are decided before the task.
RecomputePlan plan_recompute(const Program& program, const StepValues& values, const Twins& twins,
                             const RecomputeOptions& options);

}  // namespace braid
