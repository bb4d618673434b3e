#include "ops/elementwise.h"

#include <cmath>
#include <cstring>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {
namespace {

template <class T>
CpuKernel add_kernel(int64_t count) {
  return {.run = [count](const KernelArgs& args) {
    const T* const a = args.data<const T>(0);
    const T* const b = args.data<const T>(1);
    T* const c = args.data<T>(2);
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        store(c, i, static_cast<Wide<T>>(a[i]) + static_cast<Wide<T>>(b[i]));
      }
    });
  }};
}

template <class T, class Sum>
CpuKernel accumulate_kernel(int64_t count) {
  return {.run = [count](const KernelArgs& args) {
    const T* const x = args.data<const T>(0);
    auto* const y = args.data<Sum>(1);
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        store(y, i, static_cast<Wide<Sum>>(y[i]) + static_cast<Wide<Sum>>(x[i]));
      }
    });
  }};
}

template <class From, class To>
CpuKernel cast_kernel(int64_t count) {
  return {.run = [count](const KernelArgs& args) {
    const From* const x = args.data<const From>(0);
    To* const y = args.data<To>(1);
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        store(y, i, static_cast<Wide<To>>(x[i]));
      }
    });
  }};
}

template <class T>
CpuKernel fill_kernel(int64_t count, double value) {
  return {.run = [count, value](const KernelArgs& args) {
    T* const y = args.data<T>(0);
    const T rounded = static_cast<T>(static_cast<Wide<T>>(value));
    run_pieces(args.workers, count, kMinElemsPerPiece,
               [&](int, int64_t begin, int64_t end) { std::fill(y + begin, y + end, rounded); });
  }};
}

/// Zero of any type has no bits.
bool is_zero(double value) {
  return value == 0.0 && !std::signbit(value);
}

CpuKernel fill_zero_kernel(int64_t bytes) {
  return {.run = [bytes](const KernelArgs& args) {
    run_pieces(args.workers, bytes, 4 * kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
      std::memset(args.operands[0] + begin, 0, static_cast<size_t>(end - begin));
    });
  }};
}

template <class T>
CpuKernel scale_kernel(int64_t count, double factor) {
  return {.run = [count, factor](const KernelArgs& args) {
    const T* const x = args.data<const T>(0);
    T* const y = args.data<T>(1);
    const auto rounded = static_cast<Wide<T>>(static_cast<T>(static_cast<Wide<T>>(factor)));
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        store(y, i, static_cast<Wide<T>>(x[i]) * rounded);
      }
    });
  }};
}

}  // namespace

CpuKernel make_add(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_dtype(spec, 0, [&]<class T>() { return add_kernel<T>(count); });
}

CpuKernel make_accumulate(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  if (spec.operands[1].dtype == DType::kBF16) {
    return dispatch_gradient(spec,
                             [&]<class T>() { return accumulate_kernel<T, BFloat16>(count); });
  }
  return dispatch_dtype(spec, 0, [&]<class T>() { return accumulate_kernel<T, Wide<T>>(count); });
}

CpuKernel make_scale(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const double factor = attributes_of<ScaleAttributes>(spec).factor;
  return dispatch_dtype(spec, 0, [&]<class T>() { return scale_kernel<T>(count, factor); });
}

CpuKernel make_cast(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const DType from = spec.operands[0].dtype;
  const DType to = spec.operands[1].dtype;
  if (from == DType::kF32 && to == DType::kBF16) {
    return cast_kernel<float, BFloat16>(count);
  }
  if (from == DType::kBF16 && to == DType::kF32) {
    return cast_kernel<BFloat16, float>(count);
  }
  if (from == DType::kF32 && to == DType::kF64) {
    return cast_kernel<float, double>(count);
  }
  if (from == DType::kF64 && to == DType::kF32) {
    return cast_kernel<double, float>(count);
  }
  throw_internal_error("op cast: no CPU kernel from {} to {}", dtype_name(from), dtype_name(to));
}

CpuKernel make_copy(const OpSpec& spec, int /*num_workers*/) {
  const auto bytes = static_cast<int64_t>(dtype_bytes(spec.operands[0].dtype)) *
                     spec.operands[0].shape.num_elems();
  return {.run = [bytes](const KernelArgs& args) {
    run_pieces(args.workers, bytes, 4 * kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
      std::memcpy(args.operands[1] + begin, args.operands[0] + begin,
                  static_cast<size_t>(end - begin));
    });
  }};
}

CpuKernel make_fill(const OpSpec& spec, int /*num_workers*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const double value = attributes_of<FillAttributes>(spec).value;
  if (is_zero(value)) {
    return fill_zero_kernel(count * static_cast<int64_t>(dtype_bytes(spec.operands[0].dtype)));
  }
  return dispatch_dtype(spec, 0, [&]<class T>() { return fill_kernel<T>(count, value); });
}

}  // namespace braid
