#pragma once

#include <string>

#include "plan/run_plan.h"
#include "sim/cost_model.h"

namespace braid {

/// What a training step of rank 0 takes with all of its tasks one after the other, by kind of op;
/// tokens per second, MFU, and how much of the time rests on measurements. `plan` is that of
/// `run`; the model's cluster has a device for every rank. Throws InternalError for an op that
/// the model cannot price.
std::string describe_prediction(const RunPlan& plan, const CostModel& model);

}  // namespace braid
