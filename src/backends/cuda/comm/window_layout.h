#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/comm/communicators.h"
#include "comm/rendezvous.h"

namespace braid {

/// The memory of a communicator's ranks that can become its symmetric windows.
struct WindowLayout {
  std::vector<size_t> memory;  ///< indices of the memory that contains the operands of its
                               ///< collectives
  std::string why_not;         ///< empty if their layout is equal on all its ranks
};

/// Compares with the other ranks of a communicator, which must do the same at the same time, the
/// positions of its tasks' operands, and the sizes of the memory. `why_not`: a reason of this rank
/// alone. All ranks get the same reason. Throws what Rendezvous::get does.
WindowLayout agree_on_windows(const CommunicatorKey& key, std::span<const Program> programs,
                              const OperandMemory& operands, const std::string& why_not,
                              Rendezvous& rendezvous);

}  // namespace braid
