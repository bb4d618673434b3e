#pragma once

#include "comm/emulated_call.h"
#include "plan/simulated_run.h"

namespace braid {

/// The other ranks as rank `rank` sees them. Its communication takes the time that it takes in the
/// simulation `run`, contention included. If `run` was simulated with
/// SimOptions::starts_on_arrival, the time counts from the arrival of this rank and includes
/// waiting for the others; otherwise it counts only while bytes move. Covers the training program;
/// communication of evaluation takes no time. Throws ConfigError, listing the valid ranks, if the
/// plan of `run` does not contain the rank.
EmulatedPeers emulated_peers(const SimulatedRun& run, int rank);

/// The memory plan of that rank when `peers` replace the others: as planned, plus separate space
/// for data that the peers send in the first step only.
MemoryPlan memory_with(const EmulatedPeers& peers, const RankPlan& planned);

}  // namespace braid
