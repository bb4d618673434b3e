#pragma once

#include "comm/emulated_call.h"
#include "plan/simulated_run.h"

namespace braid {

/// The other ranks of a rank, as `run` simulates them: its communication takes what it takes there
/// beside all that goes on at the same time. Where `run` was simulated with
/// SimOptions::starts_on_arrival, from when this rank has come, so that waiting for the others
/// counts; else only while bytes move. Of the training program; evaluation takes no time. Throws
/// ConfigError, with the ranks that can be asked for, if the plan of `run` has not that rank.
EmulatedPeers emulated_peers(const SimulatedRun& run, int rank);

/// The memory of that rank while `peers` stand for the others: as planned, with a place of its own
/// for what they send in the first step only.
MemoryPlan memory_with(const EmulatedPeers& peers, const RankPlan& planned);

}  // namespace braid
