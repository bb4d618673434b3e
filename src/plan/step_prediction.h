#pragma once

#include <string>

#include "plan/routing_loads.h"
#include "plan/run_plan.h"
#include "sim/cost_model.h"

namespace braid {

/// Predicts a training step with all tasks of the busiest planned rank run one after the other:
/// time by kind of op, tokens per second, MFU, the range in which the time may be (`step_range`),
/// and the part of it that rests on measurements. `plan` is the plan of the run; the model's
/// cluster has a device for every rank. Throws InternalError for an op that the model cannot price.
std::string describe_prediction(const RunPlan& plan, const CostModel& model);

/// A line with the same time if ranks have these loads (`describe_skewed_step`).
std::string describe_skewed_prediction(const RunPlan& plan, const CostModel& model,
                                       const RoutingLoads& loads);

}  // namespace braid
