#pragma once

#include <vector>

#include "passes/all_ranks.h"
#include "passes/streams/comm_engine.h"

namespace braid {

/// One change of the training steps of all leading ranks: new orders, or what moves the bytes of
/// communication. The other member is empty.
struct StepChange {
  std::vector<std::vector<TaskId>> orders;       ///< by leading rank: a permutation of its tasks
  std::vector<std::vector<TaskEngine>> engines;  ///< by leading rank and task
};

/// The program of leading rank `leader` after the change, with events. Throws InternalError if
/// tasks that conflict would change places.
Program with_change(const Program& program, const StepChange& change, size_t leader);

/// Gives the ranks that follow others (AllRanks::leader_of) these changes, one after the other, and
/// plans their memory. Call before the leaders' programs change.
void change_followers(AllRanks& all, const std::vector<StepChange>& changes);

}  // namespace braid
