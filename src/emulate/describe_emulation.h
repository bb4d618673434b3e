#pragma once

#include <string>

#include "emulate/rank_emulation.h"
#include "plan/simulated_run.h"

namespace braid {

/// The measurements of an emulated rank compared with the simulator, for people:
///   step      201.3 ms, median of 5 (200.9 to 202.2 ms); simulated 206.0 ms, +2.3%
///   compute   185.2 ms, simulated 191.7 ms: +3.5%
///   exposed   12.1 ms of 130.2 ms tensor; simulated 14.2 ms of 135.2 ms
///   memory    planned 29.9 GiB = allocated; 30.6 GiB by the driver
/// a table of the places that communicate (communication_by_place), and one of ops, the longest
/// first. `simulated` contains that rank, with communication times
/// that begin at its own arrival if `emulation` has waited for others.
std::string describe_emulation(const RankEmulation& emulation, const SimulatedRun& simulated);

/// The same as a JSON object: step_ns (median), steps_ns, tokens_per_s_per_rank, planned_bytes,
/// lasting_bytes, allocated_bytes, driver_bytes, load and worst_load (EmulatedLoad), and twice, as
/// "measured" and "simulated", step_ns, compute_ns, exposed_ns, copy_ns, idle_ns, communication by
/// kind, places that communicate, and ops.
std::string emulation_json(const RankEmulation& emulation, const SimulatedRun& simulated);

}  // namespace braid
