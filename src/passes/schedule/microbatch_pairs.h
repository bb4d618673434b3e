#pragma once

#include <vector>

#include "ir/program.h"
#include "sim/cost_model.h"

namespace braid {

/// Orders the tasks of a step without a pipeline so that jobs run in pairs, each pair woven
/// (passes/pipeline/weave.h) by the prices of `model`, which are the same on all ranks of a group:
///   before: F0  B0  F1  B1  F2  B2  F3  B3
///   after:  F0+F1  B0+F2  B1+F3  B2+B3
/// where F0 is the forward of microbatch 0. Every job then has another job beside it that can hide
/// its communication. Parameters gathered for the first forward are needed at half the rate.
/// Gradients become complete, and can be reduced, at half the rate, but from twice as early on.
/// Tasks that conflict keep their order. Tasks between those of jobs (undefines) stay in front of
/// the next of them. Activations of up to three microbatches are live at a time.
///
/// Returns an empty order unless there are at least two microbatches with a forward and a backward
/// each. Source: the order of breadth-first pipelines (Lamy-Poirier, MLSys 2023) with a breadth of
/// two.
std::vector<TaskId> microbatches_in_pairs(const Program& program, const CostModel& model);

}  // namespace braid
