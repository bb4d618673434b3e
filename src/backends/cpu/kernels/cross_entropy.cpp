#include "ops/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/support.h"
#include "backends/cpu/kernels/vector_math.h"
#include "base/errors.h"
#include "ops/attributes.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows = 0;
  int64_t columns = 0;     // of logits
  int64_t vocabulary = 0;  // valid columns, the first ones of a row

  explicit Sizes(const OpSpec& spec)
      : rows(spec.operands[0].shape[0]),
        columns(spec.operands[0].shape[1]),
        vocabulary(attributes_of<CrossEntropyAttributes>(spec).vocabulary) {}
};

/// Before any worker starts, so that the first bad row is the one named, whoever would meet it.
void check_labels(const Sizes& sizes, const int32_t* labels) {
  for (int64_t row = 0; row < sizes.rows; ++row) {
    if (labels[row] >= sizes.vocabulary) {
      throw_device_error("cross_entropy: label {} in row {} is not below the vocabulary of {}",
                         labels[row], row, sizes.vocabulary);
    }
  }
}

// A row is summed in pieces of this length, by vector units, and the pieces in double: the order is
// fixed, and an error that grows with the number of terms stays that of one piece.
constexpr int64_t kPiece = 2048;

template <class T>
Wide<T> row_max(const T* logits, int64_t count) {
  Wide<T> best = logits[0];
#pragma omp simd reduction(max : best)
  for (int64_t i = 0; i < count; ++i) {
    const Wide<T> x = logits[i];
    best = x > best ? x : best;
  }
  return best;
}

template <class T>
Wide<T> sum_of_exp(const T* logits, int64_t count, Wide<T> max) {
  Wide<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    sum += vector_math::exp(static_cast<Wide<T>>(logits[i]) - max);
  }
  return sum;
}

/// log(sum(exp(logits))). NaN and +infinity give NaN, which the caller's loss then shows.
template <class T>
Wide<T> log_sum_exp(const T* logits, int64_t count) {
  const Wide<T> max = row_max(logits, count);
  double sum = 0;
  for (int64_t i = 0; i < count; i += kPiece) {
    sum += static_cast<double>(sum_of_exp(logits + i, std::min(kPiece, count - i), max));
  }
  return static_cast<Wide<T>>(static_cast<double>(max) + std::log(sum));
}

template <class T>
void forward(const Sizes& sizes, const KernelArgs& args) {
  using W = Wide<T>;
  const T* const logits = args.data<const T>(0);
  const int32_t* const labels = args.data<const int32_t>(1);
  W* const lse = args.data<W>(4);
  check_labels(sizes, labels);
  run_pieces(args.workers, sizes.rows, row_grain(sizes.vocabulary),
             [&](int, int64_t begin, int64_t end) {
               for (int64_t row = begin; row < end; ++row) {
                 lse[row] = log_sum_exp(logits + row * sizes.columns, sizes.vocabulary);
               }
             });
  double loss = 0;
  for (int64_t row = 0; row < sizes.rows; ++row) {
    if (labels[row] >= 0) {
      loss += static_cast<double>(lse[row]) -
              static_cast<double>(static_cast<W>(logits[row * sizes.columns + labels[row]]));
    }
  }
  *args.data<W>(3) = static_cast<W>(static_cast<double>(*args.data<const W>(2)) * loss);
}

template <class T>
void backward_row(const Sizes& sizes, const T* logits, int32_t label, Wide<T> scale, Wide<T> lse,
                  T* d_logits) {
  using W = Wide<T>;
  if (label < 0) {
    std::fill_n(d_logits, sizes.columns, T(0.0f));
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < sizes.vocabulary; ++i) {
    store(d_logits, i, scale * vector_math::exp(static_cast<W>(logits[i]) - lse));
  }
  const W of_label = vector_math::exp(static_cast<W>(logits[label]) - lse);
  store(d_logits, label, scale * (of_label - W(1)));
  std::fill(d_logits + sizes.vocabulary, d_logits + sizes.columns, T(0.0f));
}

template <class T>
void backward(const Sizes& sizes, const KernelArgs& args) {
  using W = Wide<T>;
  const int32_t* const labels = args.data<const int32_t>(1);
  const W scale = *args.data<const W>(2);
  check_labels(sizes, labels);
  run_pieces(args.workers, sizes.rows, row_grain(sizes.columns),
             [&](int, int64_t begin, int64_t end) {
               for (int64_t row = begin; row < end; ++row) {
                 const int64_t at = row * sizes.columns;
                 backward_row(sizes, args.data<const T>(0) + at, labels[row], scale,
                              args.data<const W>(3)[row], args.data<T>(4) + at);
               }
             });
}

}  // namespace

CpuKernel make_cross_entropy(const OpSpec& spec, int) {
  const Sizes sizes(spec);
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [sizes](const KernelArgs& args) { forward<T>(sizes, args); }};
  });
}

CpuKernel make_cross_entropy_backward(const OpSpec& spec, int) {
  const Sizes sizes(spec);
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [sizes](const KernelArgs& args) { backward<T>(sizes, args); }};
  });
}

}  // namespace braid
