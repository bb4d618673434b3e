#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "backends/executor.h"
#include "comm/transport.h"

namespace braid {

/// A task does not end, though its rank or another one has failed and everything else has stopped.
/// The message names rank, stream and task.
class StuckError : public AbortedError {
 public:
  using AbortedError::AbortedError;
};

/// Calls `work(rank)` for all ranks side by side, each on a thread of its own where there are
/// several, and waits for all. If ranks fail, throws the error of the lowest rank that did not fail
/// only because another one had (AbortedError).
void run_side_by_side(size_t num_ranks, const std::function<void(size_t rank)>& work);

/// Runs one step of a program on several ranks of this process: launches all, waits for all; side
/// by side where a launch may wait for the other ranks'. If ranks fail, throws the error of the
/// lowest rank that did not fail only because another one had, and says which tasks are stuck
/// besides. None of the others is left running, except what is stuck.
void run_ranks(std::span<Executor* const> ranks, size_t program_index);

/// The two halves of it, for steps in flight. Where a launch fails, the step ends on those ranks
/// that it was launched on before, unless launches wait for each other; all ranks are then only
/// good for destruction.
void launch_ranks(std::span<Executor* const> ranks, size_t program_index);
/// For the oldest step of each rank.
void wait_for_ranks(std::span<Executor* const> ranks);

}  // namespace braid
