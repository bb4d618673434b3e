#pragma once

#include <cstddef>
#include <span>

#include "backends/executor.h"

namespace braid {

/// Runs one step of a program on several ranks of this process: launches all, waits for all. For
/// executors whose `launch` returns at once. If ranks fail, throws the error of the lowest rank
/// that did not fail only because another one had; the others are never left running.
void run_ranks(std::span<Executor* const> ranks, size_t program_index);

}  // namespace braid
