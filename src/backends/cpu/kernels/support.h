#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "backends/cpu/kernel.h"
#include "base/dtype.h"
#include "base/errors.h"
#include "base/worker_pool.h"

/// What all CPU kernels share: the dtype switch, the split over workers, scratch.
namespace braid {

/// Type in which kernels of storage type T compute, and that of statistics and main grads.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// x[i] = value, rounded to T. Assigning a BFloat16 object would copy a class, which GCC 12 does
/// not turn into vector code; assigning its bits does.
template <class T>
void store(T* x, int64_t i, Wide<T> value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    x[i].bits = BFloat16(value).bits;
  } else {
    x[i] = value;
  }
}

/// Returns make.template operator()<T>() for the storage type T (float, double or BFloat16) of one
/// operand of the spec. Throws InternalError for other dtypes.
template <class Make>
CpuKernel dispatch_dtype(const OpSpec& spec, size_t operand, const Make& make) {
  switch (spec.operands.at(operand).dtype) {
    case DType::kF32:
      return make.template operator()<float>();
    case DType::kF64:
      return make.template operator()<double>();
    case DType::kBF16:
      return make.template operator()<BFloat16>();
    default:
      throw_internal_error("op {}: no CPU kernel for {}", spec.op,
                           dtype_name(spec.operands[operand].dtype));
  }
}

/// `workers.run` without the allocation that a std::function of a large lambda costs.
template <class Piece>
void run_pieces(WorkerPool& workers, int64_t count, int64_t grain, const Piece& piece) {
  workers.run(count, grain, std::cref(piece));
}

/// Elements per piece below which handing work to another thread costs more than it saves: 16 Ki
/// elements take about 5 us, a hand-off 1 to 2 us.
inline constexpr int64_t kMinElemsPerPiece = 16384;

/// Rows of `width` elements per piece, at least.
inline int64_t row_grain(int64_t width) {
  return std::max<int64_t>(1, kMinElemsPerPiece / std::max<int64_t>(1, width));
}

inline constexpr size_t kScratchAlignment = 64;

inline size_t align_scratch(size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

}  // namespace braid
