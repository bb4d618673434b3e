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

/// Shared parts of all CPU kernels: the dtype switch, the split over workers, scratch.
namespace braid {

/// The type in which kernels of storage type T compute; also the type of statistics and main grads.
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

/// The same for operand `result`, a main grad of bf16 values, float or BFloat16, beside the type of
/// operand `operand`: make.template operator()<T, Grad>(). For other values Grad is Wide<T>.
template <class Make>
CpuKernel dispatch_main_grad(const OpSpec& spec, size_t operand, size_t result, const Make& make) {
  return dispatch_dtype(spec, operand, [&]<class T>() {
    if constexpr (std::is_same_v<T, BFloat16>) {
      return spec.operands.at(result).dtype == DType::kBF16
                 ? make.template operator()<T, BFloat16>()
                 : make.template operator()<T, float>();
    } else {
      return make.template operator()<T, Wide<T>>();
    }
  });
}

/// make.template operator()<Grad>() for the gradient of an optimizer's op, operand 0: float or
/// BFloat16.
template <class Make>
CpuKernel dispatch_gradient(const OpSpec& spec, const Make& make) {
  return spec.operands.at(0).dtype == DType::kBF16 ? make.template operator()<BFloat16>()
                                                   : make.template operator()<float>();
}

/// `workers.run` without the allocation of a std::function for a large lambda.
template <class Piece>
void run_pieces(WorkerPool& workers, int64_t count, int64_t grain, const Piece& piece) {
  workers.run(count, grain, std::cref(piece));
}

/// Below this many elements per piece, handing work to another thread costs more than it saves: 16
/// Ki elements take about 5 us, a hand-off 1 to 2 us.
inline constexpr int64_t kMinElemsPerPiece = 16384;

/// Minimum rows of `width` elements per piece.
inline int64_t row_grain(int64_t width) {
  return std::max<int64_t>(1, kMinElemsPerPiece / std::max<int64_t>(1, width));
}

inline constexpr size_t kScratchAlignment = 64;

inline size_t align_scratch(size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

/// Allocates arrays from scratch; without memory it only counts the bytes.
class ScratchCursor {
 public:
  explicit ScratchCursor(std::byte* base) : base_(base) {}

  template <class W>
  W* take(int64_t elems) {
    const size_t at = bytes_;
    bytes_ += align_scratch(static_cast<size_t>(elems) * sizeof(W));
    return base_ == nullptr ? nullptr : reinterpret_cast<W*>(base_ + at);
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_ = 0;
};

}  // namespace braid
