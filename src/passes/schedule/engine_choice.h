#pragma once

#include <cstdint>
#include <vector>

#include "parallel/verify_ranks.h"
#include "passes/streams/comm_engine.h"
#include "sim/cost_model.h"
#include "sim/simulate.h"

namespace braid {

/// When a communication takes longer by copy engines: how much of the extra time counts as exposed.
enum class LongerCopies : uint8_t {
  kWhereExposed,  ///< all of it, if compute waited for that communication in the simulation
  kEverywhere,    ///< all of it
};

/// Chooses the engine of each collective whose group is on one node, from a simulation of the step.
/// Takes copy engines if compute beside the collective loses more time to SMs that send than the
/// copies take longer, plus, for reductions, the sum on each rank. Otherwise takes SMs. All ends of
/// a call count together and get the same engine. Messages do not change. Returns engines by
/// program of `ranks` and task, for `with_engines`; `result` is the simulation of `ranks`. Throws
/// InternalError as `Simulator`.
std::vector<std::vector<TaskEngine>> engine_choice(const RankPrograms& ranks,
                                                   const SimResult& result, const CostModel& model,
                                                   LongerCopies longer);

}  // namespace braid
