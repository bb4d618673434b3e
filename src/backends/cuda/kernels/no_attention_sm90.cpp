// Replaces attention_sm90.cpp and attention_backward_sm90.cpp if scripts/build_sm90_kernels.sh was
// not run.
#include "backends/cuda/kernels/attention_backward_sm90.h"
#include "backends/cuda/kernels/attention_sm90.h"
#include "base/errors.h"

namespace braid {

CudaKernel make_attention_sm90(const OpSpec& spec, CudaContext&) {
  throw_internal_error("op {}: this build has no kernel for Hopper beside cuDNN's", spec.op);
}

CudaKernel make_attention_backward_sm90(const OpSpec& spec, CudaContext&) {
  throw_internal_error("op {}: this build has no kernel for Hopper beside cuDNN's", spec.op);
}

}  // namespace braid
