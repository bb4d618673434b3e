#pragma once

#include <optional>
#include <string>

#include "parallel/rank_calls.h"

namespace braid {

enum class RunOrder : uint8_t {
  kStreams,      ///< as the programs say: streams run concurrently and wait for events
  kCollectives,  ///< only the collectives of each rank, one after another in program order
};

/// Runs the programs of all ranks to their end. Returns nullopt on success, else a description of
/// the deadlock. Requires that the ends of all meetings match (`check_meetings`) and that calls of
/// one sequence are ordered (`check_call_order`).
std::optional<std::string> find_deadlock(const RankCalls& calls, RunOrder order);

}  // namespace braid
