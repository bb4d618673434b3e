#include "ops/preference.h"

#include <limits>
#include <utility>

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using PreferenceCudaTest = CudaKernelTest;

struct Sizes {
  int64_t sequences;
  int64_t rows_of_sequence;
  int64_t ranks;
};

/// A lone row, more rows than threads, and several ranks, of which the last has only padding in
/// some rows.
constexpr Sizes kSizes[] = {{2, 1, 1}, {2, 7, 1}, {4, 513, 2}, {6, 129, 1}, {10, 2049, 4}};

KernelCase sequence_case(const Sizes& s) {
  const int64_t rows = s.sequences * s.rows_of_sequence;
  KernelCase kernel_case(
      {"sequence_losses",
       to_attributes(SequenceLossesAttributes{s.sequences}),
       {read(DType::kF32, {s.ranks * rows, kCrossEntropyStats}), read(DType::kI32, {rows}),
        write(DType::kF32, {s.sequences}), write(DType::kF32, {rows})}});
  TestRandom random(9);
  std::vector<double> stats;
  for (int64_t i = 0; i < s.ranks * rows; ++i) {
    const bool is_padding = s.ranks > 1 && i >= (s.ranks - 1) * rows && i % 3 == 0;
    stats.push_back(is_padding ? -std::numeric_limits<double>::infinity()
                               : random.uniform(-12.0, 12.0));
    stats.push_back(is_padding ? 0.0 : random.uniform(1.0, 1000.0));
    stats.push_back(i < rows ? random.uniform(-12.0, 12.0) : 0.0);
  }
  kernel_case.set(0, stats);
  std::vector<double> labels;
  for (int64_t row = 0; row < rows; ++row) {
    labels.push_back(row % 5 == 3 ? -100.0 : 7.0);
  }
  kernel_case.set(1, labels);
  return kernel_case;
}

// As CrossEntropyCudaTest.MergeEqualsTheCpus: exponentials are off by 2^-22.
TEST_F(PreferenceCudaTest, SumsOfSequencesEqualTheCpus) {
  for (const Sizes& s : kSizes) {
    expect_equals_cpu(sequence_case(s), context(), rounded_once(4e-6, 4e-6),
                      fmt::format("{} sequences of {} rows", s.sequences, s.rows_of_sequence));
  }
}

TEST_F(PreferenceCudaTest, LossesOfPairsEqualTheCpus) {
  const PreferenceLossAttributes losses[] = {
      {.beta = 0.05, .pairs = 7},
      {.beta = 0.4, .label_smoothing = 0.15, .pairs = 3},
      {.kind = static_cast<int64_t>(PreferenceKind::kHinge), .beta = 0.03, .pairs = 8},
      {.kind = static_cast<int64_t>(PreferenceKind::kIpo), .beta = 0.2, .pairs = 5},
      {.pairs = 4, .counts = false}};
  for (const PreferenceLossAttributes& attributes : losses) {
    for (const int64_t sequences : {2, 6, 40, 258, 600}) {
      KernelCase kernel_case({"preference_loss",
                              to_attributes(attributes),
                              {read(DType::kF32, {sequences}), read(DType::kF32, {sequences, 2}),
                               write(DType::kF32, {1}), write(DType::kF32, {kPreferenceFigures}),
                               write(DType::kF32, {sequences})}});
      TestRandom random(4);
      kernel_case.set(0, random.uniforms(sequences, 5, 60));
      std::vector<double> reference;
      for (int64_t i = 0; i < sequences; ++i) {
        reference.push_back(random.uniform(-60, -5));
        reference.push_back(random.uniform(0.01, 1));
      }
      kernel_case.set(1, reference);
      // Both compute in f64 and round once; sums differ in their order.
      expect_equals_cpu(std::move(kernel_case), context(), rounded_once(1e-7, 1e-7),
                        fmt::format("kind {} of {}", attributes.kind, sequences));
    }
  }
}

TEST_F(PreferenceCudaTest, GradientsTakeAScaleForEachSequence) {
  for (const DType dtype : kCudaDtypes) {
    for (const int64_t columns : {31, 128, 1003}) {
      constexpr int64_t kSequences = 4;
      constexpr int64_t kRows = 4 * 37;
      KernelCase kernel_case({"cross_entropy_backward",
                              to_attributes(CrossEntropyBackwardAttributes{
                                  .shard = {.vocabulary = columns - 2}, .scales = {kSequences}}),
                              {read(dtype, {kRows, columns}), read(DType::kI32, {kRows}),
                               read(DType::kF32, {kSequences}), read(DType::kF32, {kRows}),
                               write(dtype, {kRows, columns})}});
      TestRandom random(6);
      kernel_case.set(0, random.uniforms(kRows * columns, -12.0, 12.0));
      std::vector<double> labels;
      for (int64_t row = 0; row < kRows; ++row) {
        labels.push_back(row % 5 == 3 ? -100.0 : static_cast<double>(random.below(columns - 2)));
      }
      kernel_case.set(1, labels);
      kernel_case.set(2, {0.125, -0.25, 2, -1});
      kernel_case.set(3, random.uniforms(kRows, 12.0, 20.0));
      expect_equals_cpu(std::move(kernel_case), context(), rounded_once(1e-6, 4e-6),
                        fmt::format("{} {}", dtype_name(dtype), columns));
    }
  }
}

}  // namespace
}  // namespace braid
