#include "backends/cuda/kernels/tensor_map.h"

#include <cudaTypedefs.h>

#include <array>

#include "backends/cuda/driver_function.h"
#include "base/errors.h"

namespace braid {

CUtensorMap make_tensor_map(const TiledMatrix& matrix) {
  static const auto kEncode =
      driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled", 12000);
  const std::array sizes{static_cast<cuuint64_t>(matrix.columns),
                         static_cast<cuuint64_t>(matrix.rows)};
  const std::array strides{static_cast<cuuint64_t>(matrix.columns) * dtype_bytes(matrix.dtype)};
  const std::array box{static_cast<cuuint32_t>(matrix.box_columns),
                       static_cast<cuuint32_t>(matrix.box_rows)};
  const std::array<cuuint32_t, 2> steps{1, 1};
  CUtensorMap map;
  const CUresult status = kEncode(
      &map,
      matrix.dtype == DType::kF32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
      static_cast<cuuint32_t>(sizes.size()), const_cast<void*>(matrix.data), sizes.data(),
      strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
      matrix.swizzles ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw_device_error("boxes of {} x {} of a matrix of {} x {}: driver error {}", matrix.box_rows,
                       matrix.box_columns, matrix.rows, matrix.columns, static_cast<int>(status));
  }
  return map;
}

}  // namespace braid
