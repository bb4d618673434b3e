#pragma once

#include <string_view>

#include "passes/pass.h"
#include "passes/pipeline_options.h"

namespace braid {

inline constexpr std::string_view kListSchedule = "list_schedule";
inline constexpr std::string_view kChooseEngines = "choose_engines";

struct WholeStepOptions {
  bool orders = false;           ///< for list_schedule
  bool chooses_engines = false;  ///< for choose_engines, or, with an order, for list_schedule
};

/// Reorders the tasks of all ranks' training programs (sim/list_schedule.h) to make the step
/// faster. If engines are chosen as well, also chooses after each order what moves the bytes of
/// each collective (engine_choice.h). Inserts events and plans memory again.
///
/// Orders are tried with three memory limits: as now, a quarter more, and all that the device has
/// (the cost model's, less PlannedStep::beside_bytes). Each limit is tried with several ways to
/// fill waits; for long steps all ways are tried only at the device's limit, and the best of these
/// at the others. Starts: the program's order and, without a pipeline, microbatches in pairs
/// (microbatch_pairs.h). Durations come from a simulation of the plan, including what tasks cost
/// each other.
///
/// Of the orders that `Simulator` finds faster, and that fit, takes the one that needs least memory
/// within half a percent of the fastest. If there is none, nothing changes. Results have the same
/// bits, except sums for which copy engines are chosen: these become the CPU's sums
/// (passes/streams/comm_engine.h). Deterministic. Counts moved weight gradients and collectives
/// that copy engines do. Place: last, because it uses the streams, engines and events of earlier
/// passes.
Pass list_schedule_pass(const PipelineOptions& options);

/// Only chooses engines, and keeps the order.
Pass choose_engines_pass(const PipelineOptions& options);

}  // namespace braid
