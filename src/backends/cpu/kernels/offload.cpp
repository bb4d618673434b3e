#include "ops/offload.h"

#include "backends/cpu/kernels/factories.h"

// The host's memory is the device's here, so both directions are plain copies.
namespace braid {

CpuKernel make_offload(const OpSpec& spec, int num_workers) {
  return make_copy(spec, num_workers);
}

CpuKernel make_reload(const OpSpec& spec, int num_workers) {
  return make_copy(spec, num_workers);
}

}  // namespace braid
