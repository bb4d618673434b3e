#include "ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/row_statistics.h"
#include "backends/cpu/kernels/support.h"
#include "backends/cpu/kernels/vector_math.h"
#include "base/errors.h"
#include "ops/attributes.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows = 0;
  int64_t columns = 0;     // of logits
  int64_t valid = 0;       // the first columns of a row are valid
  int64_t begin = 0;       // token of column 0
  int64_t vocabulary = 0;  // number of tokens

  Sizes(const OpSpec& spec, const CrossEntropyShardAttributes& shard)
      : rows(spec.operands[0].shape[0]),
        columns(spec.operands[0].shape[1]),
        valid(shard.valid_columns(columns)),
        begin(shard.vocabulary_begin),
        vocabulary(shard.vocabulary) {}

  /// Whether this rank has the label's column; false for ignored labels.
  bool is_here(int32_t label) const { return label >= begin && label < begin + valid; }
};

/// Runs before any worker starts, so that the error names the first bad row for any number of
/// workers.
void check_labels(const Sizes& sizes, const int32_t* labels) {
  for (int64_t row = 0; row < sizes.rows; ++row) {
    if (labels[row] >= sizes.vocabulary) {
      throw_device_error("cross_entropy: label {} in row {} is not below the vocabulary of {}",
                         labels[row], row, sizes.vocabulary);
    }
  }
}

// A row is summed in pieces of this length with vector instructions, and the pieces in double. The
// order is fixed, and the rounding error is that of one piece.
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

/// Sum of exp(logits - max), for any number of logits.
template <class T>
double relative_sum(const T* logits, int64_t count, Wide<T> max) {
  double sum = 0;
  for (int64_t i = 0; i < count; i += kPiece) {
    sum += static_cast<double>(sum_of_exp(logits + i, std::min(kPiece, count - i), max));
  }
  return sum;
}

/// log(sum(exp(logits))). NaN and +infinity give NaN, which then appears in the caller's loss.
template <class T>
Wide<T> log_sum_exp(const T* logits, int64_t count) {
  const Wide<T> max = row_max(logits, count);
  return static_cast<Wide<T>>(static_cast<double>(max) +
                              std::log(relative_sum(logits, count, max)));
}

/// Writes the operand z, if there is one.
template <class W>
void store_z(const ZLoss& z, std::span<const int32_t> labels, const KernelArgs& args) {
  if (z.z_loss == 0) {
    return;
  }
  const W* const lse = args.data<const W>(4);
  double sum = 0;
  for (size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] >= 0) {
      sum += static_cast<double>(lse[row]) * static_cast<double>(lse[row]);
    }
  }
  *args.data<W>(5) = static_cast<W>(static_cast<double>(*args.data<const W>(2)) * z.z_loss * sum);
}

template <class T>
void forward(const Sizes& sizes, const ZLoss& z, const KernelArgs& args) {
  using W = Wide<T>;
  const T* const logits = args.data<const T>(0);
  const int32_t* const labels = args.data<const int32_t>(1);
  W* const lse = args.data<W>(4);
  check_labels(sizes, labels);
  run_pieces(args.workers, sizes.rows, row_grain(sizes.valid),
             [&](int, int64_t begin, int64_t end) {
               for (int64_t row = begin; row < end; ++row) {
                 lse[row] = log_sum_exp(logits + row * sizes.columns, sizes.valid);
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
  store_z<W>(z, {labels, static_cast<size_t>(sizes.rows)}, args);
}

/// Statistics of one row; see cross_entropy_partial.
template <class T>
void partial_row(const Sizes& sizes, const T* logits, int32_t label, Wide<T>* stats) {
  using W = Wide<T>;
  const W max =
      sizes.valid > 0 ? row_max(logits, sizes.valid) : -std::numeric_limits<W>::infinity();
  stats[0] = max;
  stats[1] = static_cast<W>(relative_sum(logits, sizes.valid, reference_of(max)));
  stats[2] = sizes.is_here(label) ? static_cast<W>(logits[label - sizes.begin]) : W(0);
}

template <class T>
void partial(const Sizes& sizes, const KernelArgs& args) {
  const int32_t* const labels = args.data<const int32_t>(1);
  check_labels(sizes, labels);
  run_pieces(args.workers, sizes.rows, row_grain(sizes.columns),
             [&](int, int64_t begin, int64_t end) {
               for (int64_t row = begin; row < end; ++row) {
                 partial_row(sizes, args.data<const T>(0) + row * sizes.columns, labels[row],
                             args.data<Wide<T>>(2) + row * kCrossEntropyStats);
               }
             });
}

template <class W>
void merge(const StatisticsSizes& sizes, const ZLoss& z, const KernelArgs& args) {
  const int32_t* const labels = args.data<const int32_t>(1);
  double loss = 0;
  for (int64_t row = 0; row < sizes.rows; ++row) {
    const auto [lse, of_label] = merged_row(sizes, args.data<const W>(0), row);
    args.data<W>(4)[row] = lse;
    if (labels[row] >= 0) {
      loss += static_cast<double>(lse) - of_label;
    }
  }
  *args.data<W>(3) = static_cast<W>(static_cast<double>(*args.data<const W>(2)) * loss);
  store_z<W>(z, {labels, static_cast<size_t>(sizes.rows)}, args);
}

template <class T>
void backward_row(const Sizes& sizes, const ZLoss& z, const T* logits, int32_t label, Wide<T> scale,
                  Wide<T> lse, T* d_logits) {
  using W = Wide<T>;
  // Of the softmax; without a loss of z exactly 1, so that it changes no bit.
  const W weight = W(1) + static_cast<W>(2 * z.z_loss) * lse;
  if (label < 0) {
    std::fill_n(d_logits, sizes.columns, T(0.0f));
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < sizes.valid; ++i) {
    store(d_logits, i, scale * (weight * vector_math::exp(static_cast<W>(logits[i]) - lse)));
  }
  if (sizes.is_here(label)) {
    const int64_t column = label - sizes.begin;
    const W of_label = vector_math::exp(static_cast<W>(logits[column]) - lse);
    store(d_logits, column, scale * (weight * of_label - W(1)));
  }
  std::fill(d_logits + sizes.valid, d_logits + sizes.columns, T(0.0f));
}

template <class T>
void backward(const Sizes& sizes, const CrossEntropyBackwardAttributes& attributes,
              const KernelArgs& args) {
  using W = Wide<T>;
  const int32_t* const labels = args.data<const int32_t>(1);
  const W* const scales = args.data<const W>(2);
  check_labels(sizes, labels);
  const int64_t rows_of_scale = sizes.rows / attributes.scales.sequences;
  run_pieces(args.workers, sizes.rows, row_grain(sizes.columns),
             [&](int, int64_t begin, int64_t end) {
               for (int64_t row = begin; row < end; ++row) {
                 const int64_t at = row * sizes.columns;
                 backward_row(sizes, attributes.z, args.data<const T>(0) + at, labels[row],
                              scales[row / rows_of_scale], args.data<const W>(3)[row],
                              args.data<T>(4) + at);
               }
             });
}

}  // namespace

CpuKernel make_cross_entropy(const OpSpec& spec, int) {
  const auto attributes = attributes_of<CrossEntropyAttributes>(spec);
  const Sizes sizes(spec, {.vocabulary = attributes.vocabulary});
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {
        .run = [sizes, z = attributes.z](const KernelArgs& args) { forward<T>(sizes, z, args); }};
  });
}

CpuKernel make_cross_entropy_partial(const OpSpec& spec, int) {
  const Sizes sizes(spec, attributes_of<CrossEntropyShardAttributes>(spec));
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [sizes](const KernelArgs& args) { partial<T>(sizes, args); }};
  });
}

CpuKernel make_cross_entropy_merge(const OpSpec& spec, int) {
  const StatisticsSizes sizes(spec);
  const ZLoss z = attributes_of<CrossEntropyMergeAttributes>(spec).z;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [sizes, z](const KernelArgs& args) { merge<Wide<T>>(sizes, z, args); }};
  });
}

CpuKernel make_cross_entropy_backward(const OpSpec& spec, int) {
  const auto attributes = attributes_of<CrossEntropyBackwardAttributes>(spec);
  const Sizes sizes(spec, attributes.shard);
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [sizes, attributes](const KernelArgs& args) {
      backward<T>(sizes, attributes, args);
    }};
  });
}

}  // namespace braid
