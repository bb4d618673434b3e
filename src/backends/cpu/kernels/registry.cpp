#include <algorithm>
#include <array>
#include <string_view>

#include "backends/cpu/kernel.h"
#include "backends/cpu/kernels/factories.h"
#include "base/errors.h"

namespace braid {
namespace {

struct KernelEntry {
  std::string_view op;
  CpuKernel (*make)(const OpSpec& spec, int num_workers);
};

constexpr std::array kKernels = {
    KernelEntry{"swiglu", make_swiglu},
    KernelEntry{"swiglu_backward", make_swiglu_backward},
    KernelEntry{"gelu", make_gelu},
    KernelEntry{"gelu_backward", make_gelu_backward},
    KernelEntry{"attention", make_attention},
    KernelEntry{"attention_backward", make_attention_backward},
    KernelEntry{"cross_entropy", make_cross_entropy},
    KernelEntry{"cross_entropy_backward", make_cross_entropy_backward},
    KernelEntry{"add", make_add},
    KernelEntry{"cast", make_cast},
    KernelEntry{"copy", make_copy},
    KernelEntry{"fill", make_fill},
    KernelEntry{"embedding", make_embedding},
    KernelEntry{"embedding_wgrad", make_embedding_wgrad},
    KernelEntry{"position_embedding_wgrad", make_position_embedding_wgrad},
    KernelEntry{"linear", make_linear},
    KernelEntry{"linear_dgrad", make_linear_dgrad},
    KernelEntry{"linear_wgrad", make_linear_wgrad},
    KernelEntry{"rmsnorm", make_rmsnorm},
    KernelEntry{"add_rmsnorm", make_add_rmsnorm},
    KernelEntry{"rmsnorm_backward", make_rmsnorm_backward},
    KernelEntry{"layernorm", make_layernorm},
    KernelEntry{"add_layernorm", make_add_layernorm},
    KernelEntry{"layernorm_backward", make_layernorm_backward},
    KernelEntry{"squared_norm", make_squared_norm},
    KernelEntry{"clip_scale", make_clip_scale},
    KernelEntry{"adamw", make_adamw},
    KernelEntry{"rope", make_rope},
};

}  // namespace

CpuKernel make_cpu_kernel(const OpSpec& spec, int num_workers) {
  check(num_workers >= 1, "a kernel needs at least 1 worker, not {}", num_workers);
  const auto* const entry = std::find_if(kKernels.begin(), kKernels.end(),
                                         [&](const KernelEntry& e) { return e.op == spec.op; });
  check(entry != kKernels.end(), "there is no CPU kernel for op {}", spec.op);
  return entry->make(spec, num_workers);
}

}  // namespace braid
