#include "backends/cuda/kernels/tensor_map.h"

#include <cudaTypedefs.h>

#include <array>

#include "backends/cuda/driver_function.h"
#include "base/errors.h"

namespace braid {
namespace {

/// Boxes of some of the dimensions of a tensor. Strides, in bytes, are those of all but the first.
template <size_t kDimensions>
struct Boxes {
  std::array<cuuint64_t, kDimensions> sizes;
  std::array<cuuint64_t, kDimensions - 1> strides;
  std::array<cuuint32_t, kDimensions> box;
};

template <size_t kDimensions>
CUtensorMap encode(const TiledMatrix& matrix, const Boxes<kDimensions>& boxes) {
  static const auto kEncode =
      driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled", 12000);
  std::array<cuuint32_t, kDimensions> steps;
  steps.fill(1);
  CUtensorMap map;
  const CUresult status = kEncode(
      &map,
      matrix.dtype == DType::kF32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
      kDimensions, const_cast<void*>(matrix.data), boxes.sizes.data(), boxes.strides.data(),
      boxes.box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
      matrix.swizzles ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw_device_error("boxes of {} x {} of a matrix of {} x {}: driver error {}", matrix.box_rows,
                       matrix.box_columns, matrix.rows, matrix.columns, static_cast<int>(status));
  }
  return map;
}

cuuint64_t row_bytes(const TiledMatrix& matrix) {
  return static_cast<cuuint64_t>(matrix.columns) * dtype_bytes(matrix.dtype);
}

}  // namespace

CUtensorMap make_tensor_map(const TiledMatrix& matrix) {
  return encode<2>(matrix, {.sizes = {static_cast<cuuint64_t>(matrix.columns),
                                      static_cast<cuuint64_t>(matrix.rows)},
                            .strides = {row_bytes(matrix)},
                            .box = {static_cast<cuuint32_t>(matrix.box_columns),
                                    static_cast<cuuint32_t>(matrix.box_rows)}});
}

CUtensorMap make_interleaved_tensor_map(const TiledMatrix& matrix) {
  const cuuint64_t pitch = row_bytes(matrix);
  return encode<5>(matrix, {.sizes = {static_cast<cuuint64_t>(matrix.columns), 2, 4, 16,
                                      static_cast<cuuint64_t>(matrix.rows / 128)},
                            .strides = {pitch, 32 * pitch, 2 * pitch, 128 * pitch},
                            .box = {static_cast<cuuint32_t>(matrix.box_columns), 2, 4, 16, 1}});
}

}  // namespace braid
