#include <algorithm>
#include <string_view>
#include <vector>

#include "backends/cuda/kernel.h"
#include "backends/cuda/kernels/factories.h"
#include "base/errors.h"

namespace braid {
namespace {

struct KernelEntry {
  std::string_view op;
  CudaKernel (*make)(const OpSpec& spec, CudaContext& context);
};

/// The ops that have a CUDA kernel: an op gets its line with the file that defines its factory.
const std::vector<KernelEntry>& kernels() {
  static const std::vector<KernelEntry> table = {};
  return table;
}

}  // namespace

CudaKernel make_cuda_kernel(const OpSpec& spec, CudaContext& context) {
  const auto entry = std::find_if(kernels().begin(), kernels().end(),
                                  [&](const KernelEntry& e) { return e.op == spec.op; });
  check(entry != kernels().end(), "there is no CUDA kernel for op {}", spec.op);
  return entry->make(spec, context);
}

}  // namespace braid
