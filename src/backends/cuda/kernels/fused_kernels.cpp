#include "backends/cuda/kernels/fused_kernels.h"

#include <algorithm>

#include "backends/cuda/architecture.h"

namespace braid {
namespace {

#ifdef BRAID_HAS_SM90_PRODUCTS
constexpr bool kHasProducts = true;
#else
constexpr bool kHasProducts = false;
#endif

}  // namespace

bool has_fused_kernels(const OpSpec& spec) {
  return kHasProducts && runs_hopper_kernels(gpu_capability()) &&
         std::ranges::all_of(spec.operands, [](const OperandSpec& operand) {
           return operand.shape.rank() == 1 ||
                  (operand.dtype == DType::kBF16 && is_whole_vectors(operand.shape[1]));
         });
}

}  // namespace braid
