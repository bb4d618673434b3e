#pragma once

#include <cstdint>
#include <vector>

#include "parallel/verify_ranks.h"
#include "passes/streams/comm_engine.h"
#include "sim/cost_model.h"
#include "sim/simulate.h"

namespace braid {

/// What of a communication that takes longer by copy engines counts as time that compute waits.
enum class LongerCopies : uint8_t {
  kWhereExposed,  ///< all of it, if compute has waited for that communication in the simulation
  kEverywhere,    ///< all of it
};

/// What is to move the bytes of each collective in groups of one node, after a simulation of the
/// step: copy engines where what products beside it lose to SMs that send is more than what copies
/// take longer, and for reductions the sum on each rank; else SMs. All ends of a call count
/// together, and are given the same engine. Messages stay as they are. By program of `ranks` and
/// task, for `with_engines`; `result` is of `ranks`. Throws InternalError as `Simulator`.
std::vector<std::vector<TaskEngine>> engine_choice(const RankPrograms& ranks,
                                                   const SimResult& result, const CostModel& model,
                                                   LongerCopies longer);

}  // namespace braid
