#pragma once

#include <cstddef>
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

/// Runs one step of a program on several ranks of this process: launches all, waits for all. For
/// executors whose `launch` returns at once. If ranks fail, throws the error of the lowest rank
/// that did not fail only because another one had, and says which tasks are stuck besides. None of
/// the others is left running, except what is stuck.
void run_ranks(std::span<Executor* const> ranks, size_t program_index);

}  // namespace braid
