#include "ops/offload.h"

#include "backends/cpu/kernels/factories.h"

// On a CPU, host and device memory are the same, so both directions are plain copies.
namespace braid {

CpuKernel make_offload(const OpSpec& spec, int num_workers) {
  return make_copy(spec, num_workers);
}

CpuKernel make_reload(const OpSpec& spec, int num_workers) {
  return make_copy(spec, num_workers);
}

}  // namespace braid
