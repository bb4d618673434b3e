#pragma once

#include <braid/braid.h>

#include "report/records.h"

namespace braid::api {

/// The record of a step as the facade shows it.
TrainStep step_result(const StepRecord& record);

}  // namespace braid::api
