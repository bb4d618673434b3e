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
  kReplay,  ///< all results but one from that one, by the op's ReplayRule
};

/// Calls `visit(operand, is_result)` for the operands of a task as it is repeated, in their order:
/// their positions among the task's own, and whether they are made again.
template <class Visit>
void for_each_repeated_operand(const OpSpec& spec, Redo redo, Visit&& visit) {
  if (redo == Redo::kReplay) {
    const auto operands = find_op(spec.op).replay.operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      visit(operands[i], i > 0 && writes(spec.operands[operands[i]].access));
    }
    return;
  }
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    visit(i, writes(spec.operands[i].access));
  }
}

/// What is to be made again, with nothing rewritten yet.
struct RecomputePlan {
  std::vector<Redo> redo;           ///< by task: how it would be repeated
  std::vector<bool> is_recomputed;  ///< by buffer: the backward reads it made again
  int64_t bytes_kept_less = 0;      ///< over all blocks of the step
};

/// Decides task by task through the forward, so that what a task reads is decided before it.
RecomputePlan plan_recompute(const Program& program, const StepValues& values, const Twins& twins,
                             const RecomputeOptions& options);

}  // namespace braid
