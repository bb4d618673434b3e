#include "ops/norm.h"

#include <cmath>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"

namespace braid {
namespace {

/// Operands of the four forward ops; null if an op lacks one.
template <class T>
struct NormForward {
  const T* x = nullptr;         // [N,C]
  const T* residual = nullptr;  // [N,C]
  const T* w = nullptr;         // [C]
  const T* b = nullptr;         // [C]
  T* sum = nullptr;             // [N,C]
  T* y = nullptr;               // [N,C]
  Wide<T>* mean = nullptr;      // [N]
  Wide<T>* rstd = nullptr;      // [N]
};

template <class T>
void add_row(const T* x, const T* residual, int64_t width, T* sum) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    store(sum, c, static_cast<Wide<T>>(x[c]) + static_cast<Wide<T>>(residual[c]));
  }
}

template <class T>
Wide<T> row_mean(const T* x, int64_t width) {
  Wide<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < width; ++c) {
    sum += static_cast<Wide<T>>(x[c]);
  }
  return sum / static_cast<Wide<T>>(width);
}

/// 1 / sqrt(mean((x - mean)^2) + epsilon): a second pass over a row in cache, since the difference
/// of two large sums would cancel.
template <class T>
Wide<T> row_rstd(const T* x, int64_t width, Wide<T> mean, double epsilon) {
  Wide<T> squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t c = 0; c < width; ++c) {
    const Wide<T> centred = static_cast<Wide<T>>(x[c]) - mean;
    squares += centred * centred;
  }
  return Wide<T>(1) / std::sqrt(squares / static_cast<Wide<T>>(width) + Wide<T>(epsilon));
}

template <bool kCentred, class T>
void norm_row(const NormForward<T>& o, int64_t n, int64_t width, const NormAttributes& attributes) {
  using W = Wide<T>;
  const W offset(attributes.offset.weight_offset);
  const T* x = o.x + n * width;
  if (o.sum != nullptr) {
    add_row(x, o.residual + n * width, width, o.sum + n * width);
    x = o.sum + n * width;
  }
  const W mean = kCentred ? row_mean(x, width) : W(0);
  const W rstd = row_rstd(x, width, mean, attributes.epsilon);
  T* const y = o.y + n * width;
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) {
    const W normed = (static_cast<W>(x[c]) - mean) * rstd * (static_cast<W>(o.w[c]) + offset);
    store(y, c, kCentred ? normed + static_cast<W>(o.b[c]) : normed);
  }
  if constexpr (kCentred) {
    o.mean[n] = mean;
  }
  o.rstd[n] = rstd;
}

/// Operands in the order in which ops/norm.h lists them.
template <bool kCentred, bool kAdd, class T>
NormForward<T> forward_operands(const KernelArgs& args) {
  size_t next = 0;
  NormForward<T> o;
  o.x = args.data<const T>(next++);
  o.residual = kAdd ? args.data<const T>(next++) : nullptr;
  o.w = args.data<const T>(next++);
  o.b = kCentred ? args.data<const T>(next++) : nullptr;
  o.sum = kAdd ? args.data<T>(next++) : nullptr;
  o.y = args.data<T>(next++);
  o.mean = kCentred ? args.data<Wide<T>>(next++) : nullptr;
  o.rstd = args.data<Wide<T>>(next++);
  return o;
}

template <bool kCentred, bool kAdd>
CpuKernel make_forward(const OpSpec& spec) {
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t width = spec.operands[0].shape[1];
  const auto attributes = attributes_of<NormAttributes>(spec);
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      const auto operands = forward_operands<kCentred, kAdd, T>(args);
      run_pieces(args.workers, rows, row_grain(width), [&](int, int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
          norm_row<kCentred>(operands, n, width, attributes);
        }
      });
    }};
  });
}

}  // namespace

CpuKernel make_rmsnorm(const OpSpec& spec, int /*num_workers*/) {
  return make_forward<false, false>(spec);
}

CpuKernel make_add_rmsnorm(const OpSpec& spec, int /*num_workers*/) {
  return make_forward<false, true>(spec);
}

CpuKernel make_layernorm(const OpSpec& spec, int /*num_workers*/) {
  return make_forward<true, false>(spec);
}

CpuKernel make_add_layernorm(const OpSpec& spec, int /*num_workers*/) {
  return make_forward<true, true>(spec);
}

}  // namespace braid
