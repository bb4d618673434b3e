#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/kernel.h"

/// The kernels that do all of a linear_swiglu or a linear_dgrad_swiglu_backward: sm90_products.h's
/// of these kinds. Their epilogues have the operations of swiglu.cuh, so they give the bits of the
/// two kernels that the op stands for where the product's bits are those of cuBLASLt.
namespace braid {

/// Names of those for the operands of a spec; none where rows are not whole vectors of bf16.
std::vector<std::string> fused_kernel_names(const OpSpec& spec);

CudaKernel make_fused_kernel(const OpSpec& spec, std::string_view name, CudaContext& context);

}  // namespace braid
