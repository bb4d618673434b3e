#include "ops/preference.h"

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/row_statistics.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"
#include "ops/pair_loss.h"

namespace braid {
namespace {

template <class W>
void sum_sequences(const StatisticsSizes& sizes, int64_t sequences, const KernelArgs& args) {
  const int32_t* const labels = args.data<const int32_t>(1);
  const int64_t rows = sizes.rows / sequences;
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    double loss = 0;
    for (int64_t row = sequence * rows; row < (sequence + 1) * rows; ++row) {
      const auto [lse, of_label] = merged_row(sizes, args.data<const W>(0), row);
      args.data<W>(3)[row] = lse;
      if (labels[row] >= 0) {
        loss += static_cast<double>(lse) - of_label;
      }
    }
    args.data<W>(2)[sequence] = static_cast<W>(loss);
  }
}

template <class W>
void compare_pairs(const PreferenceLossAttributes& attributes, int64_t sequences,
                   const KernelArgs& args) {
  const PreferenceKind kind = attributes.preference_kind();
  const double scale = 1.0 / static_cast<double>(attributes.pairs);
  PairFigures sum;
  for (int64_t b = 0; b < sequences; b += 2) {
    const PairFigures pair =
        pair_figures(kind, attributes.beta, attributes.label_smoothing, args.data<const W>(0) + b,
                     args.data<const W>(1) + b * kReferenceColumns);
    sum.loss += pair.loss;
    for (int64_t i = 0; i < kPreferenceFigures; ++i) {
      sum.figures[i] += pair.figures[i];
    }
    args.data<W>(4)[b] = static_cast<W>(scale * pair.d_chosen);
    args.data<W>(4)[b + 1] = static_cast<W>(scale * pair.d_rejected);
  }
  const double counted = attributes.counts ? scale : 0.0;
  *args.data<W>(2) = static_cast<W>(counted * sum.loss);
  for (int64_t i = 0; i < kPreferenceFigures; ++i) {
    args.data<W>(3)[i] = static_cast<W>(counted * sum.figures[i]);
  }
}

}  // namespace

CpuKernel make_sequence_losses(const OpSpec& spec, int) {
  const StatisticsSizes sizes(spec);
  const int64_t sequences = attributes_of<SequenceLossesAttributes>(spec).sequences;
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) { sum_sequences<Wide<T>>(sizes, sequences, args); }};
  });
}

CpuKernel make_preference_loss(const OpSpec& spec, int) {
  const auto attributes = attributes_of<PreferenceLossAttributes>(spec);
  const int64_t sequences = spec.operands[0].shape[0];
  return dispatch_dtype(spec, 0, [&]<class T>() -> CpuKernel {
    return {.run = [=](const KernelArgs& args) {
      compare_pairs<Wide<T>>(attributes, sequences, args);
    }};
  });
}

}  // namespace braid
