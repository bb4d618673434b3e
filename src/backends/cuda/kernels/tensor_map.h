#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/dtype.h"

namespace braid {

/// A row-major matrix [rows, columns] of which the tensor memory accelerator copies boxes
/// [box_rows, box_columns]. `swizzles`: rows of a box have 128 bytes; in shared memory, the index
/// of a row modulo 8 is XORed into that of its 16-byte chunks.
struct TiledMatrix {
  const void* data = nullptr;  ///< a multiple of 16, like the bytes of a row
  DType dtype = DType::kF32;   ///< f32, f8e4m3
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t box_rows = 0;
  int64_t box_columns = 0;
  bool swizzles = false;
};

/// What a kernel needs to copy boxes of the matrix. Throws DeviceError, naming the driver's error.
CUtensorMap make_tensor_map(const TiledMatrix& matrix);

}  // namespace braid
