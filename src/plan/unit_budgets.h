#pragma once

#include <cstdint>
#include <string>

#include "plan/run_plan.h"

namespace braid {

/// The most bytes of gathered weights, or of gradients that wait for their reduction, that live at
/// one time in a program of a planned rank. Ranks without buffers (`RankPlan::no_buffers`) count as
/// 0.
int64_t most_gathered_bytes(const RunPlan& plan);
int64_t most_gradient_bytes(const RunPlan& plan);

/// Bytes as memory.gather_budget takes them, rounded up: "353MiB", "1200B" if they are few.
std::string budget_text(int64_t bytes);

/// Checks memory.gather_budget and memory.grad_budget against the programs of the plan, where the
/// pass that keeps to them is on (prefetch_parameters, overlap_grad_reduce): without it, in mode
/// "off", nothing is gathered early, but the gradients of a whole job wait for their reduction.
/// Throws ConfigError that names the rank that needs most, its largest buffer and the nearest valid
/// value.
void check_budgets(const RunPlan& plan);

}  // namespace braid
