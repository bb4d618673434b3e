#pragma once

#include <vector>

#include "ir/program.h"
#include "sim/cost_model.h"

namespace braid {

/// The tasks of a step without a pipeline with its jobs two by two, each pair woven
/// (passes/pipeline/weave.h) by the prices of `model`, which are made equal on all ranks of a
/// group:
///   before: F0  B0  F1  B1  F2  B2  F3  B3
///   after:  F0+F1  B0+F2  B1+F3  B2+B3
/// where F0 is the forward of microbatch 0. So every job has another one beside it under which its
/// communication may run; what is gathered for the first forward is needed half as fast, and
/// gradients become complete, and can be reduced, half as fast, but from twice as early on. Tasks
/// that conflict keep their order. What stands between the tasks of jobs (memory that changes
/// hands) stays in front of the next of them. Activations of up to three microbatches are alive at
/// a time.
///
/// Empty if there are not at least two microbatches with a forward and a backward each. Source: the
/// order of breadth-first pipelines (Lamy-Poirier, MLSys 2023) with a breadth of two.
std::vector<TaskId> microbatches_in_pairs(const Program& program, const CostModel& model);

}  // namespace braid
