#pragma once

#include <nccl.h>

#include "backends/cuda/kernel.h"
#include "comm/comm_call.h"

namespace braid {

/// The kernel of a communication: `call` without addresses, on the communicator of its group, or
/// for messages on that of sender and receiver. `place` is this rank's index in the communicator.
/// Operands are those of `spec`. Throws InternalError for a dtype that NCCL lacks.
CudaKernel make_nccl_kernel(const OpSpec& spec, const CommCall& call, ncclComm_t communicator,
                            int place);

}  // namespace braid
