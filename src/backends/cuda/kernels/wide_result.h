#pragma once

#include <functional>

#include "backends/cuda/kernel.h"
#include "ir/op_spec.h"

namespace braid {

/// For an op with a bf16 main grad, whose fastest kernels write fp32: `make` makes the kernel of
/// the same spec with an fp32 result that it overwrites. That result goes to scratch
/// (wide_result_bytes), and is added to operand `result`, or overwrites it, with one rounding.
CudaKernel with_wide_result(const OpSpec& spec, size_t result,
                            const std::function<CudaKernel(const OpSpec&)>& make);

}  // namespace braid
