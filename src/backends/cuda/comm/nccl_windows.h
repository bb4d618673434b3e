#pragma once

#include <nccl.h>

#include <cstddef>
#include <span>
#include <string>

#include "backends/cuda/comm/communicators.h"

namespace braid {

/// Registers these parts of the memory as symmetric windows of a communicator, together with its
/// other members. They end with the communicator. Returns why NCCL has none between these GPUs, the
/// same on all members; empty if it has. Throws DeviceError.
std::string make_windows(ncclComm_t communicator, std::span<const size_t> parts,
                         const OperandMemory& operands);

}  // namespace braid
