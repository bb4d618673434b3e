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

/// Puts the tasks of the training programs of all ranks into a better order
/// (sim/list_schedule.h), and, where engines are chosen as well, says behind each order what moves
/// the bytes of each collective (engine_choice.h). Gives programs events again and plans their
/// memory again. Of orders tries a few settings: memory as it is, a quarter more, all that the
/// device has (the cost model's, less PlannedStep::beside_bytes), each with several ways to fill
/// waits (for long steps all of them only where the device's memory is the limit, and the best of
/// these elsewhere), from the program's order and, without a pipeline, from microbatches in pairs
/// (microbatch_pairs.h); durations as in a simulation of the plan with what tasks cost each other.
/// Of the orders that `Simulator` finds faster, and that fit, takes the one that needs least memory
/// within half a percent of the fastest; none: all stays as it is. Results are the same bits, but
/// for sums that copy engines are chosen for, which then are those of the CPU
/// (passes/streams/comm_engine.h). Deterministic. Counts weight gradients that have another place
/// and collectives that copy engines do. Place: last, as it goes by streams, engines and events
/// that others have given.
Pass list_schedule_pass(const PipelineOptions& options);

/// The same without another order.
Pass choose_engines_pass(const PipelineOptions& options);

}  // namespace braid
