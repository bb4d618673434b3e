#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/comm/communicators.h"
#include "comm/rendezvous.h"

namespace braid {

/// What memory of the ranks of a communicator can be its symmetric windows.
struct WindowLayout {
  std::vector<size_t> memory;  ///< numbers of what the operands of its collectives lie in
  std::string why_not;         ///< empty if they lie alike on all its ranks
};

/// Compares with the other ranks of a communicator, which must do the same at the same time, where
/// the operands of its tasks are, and how large the memory is. `why_not`: a reason of this rank
/// alone. All ranks get the same reason. Throws what Rendezvous::get does.
WindowLayout agree_on_windows(const CommunicatorKey& key, std::span<const Program> programs,
                              const OperandMemory& operands, const std::string& why_not,
                              Rendezvous& rendezvous);

}  // namespace braid
