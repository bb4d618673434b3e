// Stands in for attention_backward_sm90.cpp where scripts/build_attention_kernels.sh was not run.
#include "backends/cuda/kernels/attention_backward_sm90.h"
#include "base/errors.h"

namespace braid {

CudaKernel make_attention_backward_sm90(const OpSpec& spec, CudaContext&) {
  throw_internal_error("op {}: this build has no kernel of its own for Hopper", spec.op);
}

}  // namespace braid
