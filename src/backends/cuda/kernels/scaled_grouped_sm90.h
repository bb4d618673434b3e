#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace braid {

/// Products of experts whose factors are f8e4m3 with scales for blocks of 128 elements
/// (ops/scaled_grouped_linear.h), on GPUs of compute capability 9.0. Sums are those of
/// docs/numerics.md, "The sums of Hopper": the tensor cores' over 128 elements, each added to an
/// fp32 sum by a fused multiply-add with its scales. The order is that of the depth, so bits depend
/// on nothing else.

/// c [rows, columns] = a [rows, depth] b_e^T: rows [offsets[e], offsets[e+1]) with expert e's
/// matrix [columns, depth]. columns and depth are multiples of 128, rows of 4.
struct ScaledGroupedRows {
  const void* a = nullptr;
  const float* a_scales = nullptr;    ///< [depth / 128, rows]
  const void* b = nullptr;            ///< [E columns, depth], or [columns, E depth]
  const float* b_scales = nullptr;    ///< squares of the whole of b
  bool experts_divide_depth = false;  ///< b is [columns, E depth]
  const int32_t* offsets = nullptr;   ///< [E+1], on the device
  int64_t num_experts = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  __nv_bfloat16* c = nullptr;
};

/// c [E rows, columns] (+)= a_e b_e^T over the columns of an expert (GroupedColumns): a [rows,
/// width], b [columns, width]. rows and columns are multiples of 128.
struct ScaledGroupedColumns {
  const void* a = nullptr;
  const float* a_scales = nullptr;  ///< [width / 128, rows]
  const void* b = nullptr;
  const float* b_scales = nullptr;  ///< [width / 128, columns]
  const int32_t* offsets = nullptr;
  int64_t num_experts = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t width = 0;
  float* c = nullptr;
  bool accumulate = false;
};

/// Enqueue the product. `multiprocessors`: of the device.
void launch_scaled_grouped(const ScaledGroupedRows& product, int multiprocessors,
                           cudaStream_t stream);
void launch_scaled_grouped(const ScaledGroupedColumns& product, int multiprocessors,
                           cudaStream_t stream);

}  // namespace braid
