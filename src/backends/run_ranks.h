#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "backends/executor.h"
#include "comm/transport.h"

namespace braid {

/// A task does not end although its rank or another one has failed and everything else has stopped.
/// The message names rank, stream and task.
class StuckError : public AbortedError {
 public:
  using AbortedError::AbortedError;
};

/// Calls `work(rank)` for all ranks concurrently, with a thread per rank if there are several, and
/// waits for all. If ranks fail, throws the error of the lowest rank whose error is not an
/// AbortedError, that is, a consequence of another rank's failure.
void run_side_by_side(size_t num_ranks, const std::function<void(size_t rank)>& work);

/// Runs one step of a program on several ranks of this process: launches all and waits for all;
/// concurrently if a launch may wait for those of other ranks. If ranks fail, throws the error of
/// the lowest rank that did not fail only because of another one, and also names stuck tasks. No
/// other rank keeps running, except for stuck tasks.
void run_ranks(std::span<Executor* const> ranks, size_t program_index);

/// The two halves of `run_ranks`, for steps in flight. If a launch fails, the step ends on the
/// ranks on which it was launched before, unless launches wait for each other; all ranks can then
/// only be destroyed.
void launch_ranks(std::span<Executor* const> ranks, size_t program_index);
/// Waits for the oldest step of each rank.
void wait_for_ranks(std::span<Executor* const> ranks);

}  // namespace braid
