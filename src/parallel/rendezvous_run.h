#pragma once

#include <optional>
#include <string>

#include "parallel/rank_calls.h"

namespace braid {

enum class RunOrder : uint8_t {
  kStreams,      ///< as the programs say: streams side by side, held up by events
  kCollectives,  ///< only the collectives of each rank, one after the other in program order
};

/// Runs the programs of all ranks to their end; nullopt if they get there, else what waits for
/// what. The ends of all meetings must fit together (`check_meetings`) and calls of one sequence be
/// ordered (`check_call_order`).
std::optional<std::string> find_deadlock(const RankCalls& calls, RunOrder order);

}  // namespace braid
