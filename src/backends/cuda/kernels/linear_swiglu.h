#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/kernel.h"

/// The kernels that compute a whole fused product (ops/linear_swiglu.h): those of
/// sm90_products.h of these kinds. Their epilogues use the operations of swiglu.cuh, so results are
/// bitwise those of two separate kernels if the product is bitwise that of cuBLASLt.
namespace braid {

/// Names of the kernels for the operands of a spec; empty if rows are not whole vectors of bf16.
std::vector<std::string> fused_kernel_names(const OpSpec& spec);

CudaKernel make_fused_kernel(const OpSpec& spec, std::string_view name, CudaContext& context);

}  // namespace braid
