#include "ops/preference.h"

#include <array>

#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr auto kDpo = static_cast<int64_t>(PreferenceKind::kDpo);
constexpr auto kHinge = static_cast<int64_t>(PreferenceKind::kHinge);
constexpr auto kIpo = static_cast<int64_t>(PreferenceKind::kIpo);

struct Sizes {
  int64_t sequences = 0;
  int64_t rows_of_sequence = 0;
  int64_t ranks = 0;
  int64_t rows() const { return sequences * rows_of_sequence; }
};

const Sizes kAwkwardSizes[] = {{2, 1, 1}, {2, 7, 1}, {4, 3, 2}, {6, 129, 1}, {10, 31, 4}};

std::string name_of(const Sizes& s) {
  return fmt::format("{} sequences of {} rows, {} ranks", s.sequences, s.rows_of_sequence, s.ranks);
}

/// Every third label is ignored; sequence 1 has none.
std::vector<double> some_labels(const Sizes& s) {
  std::vector<double> labels;
  for (int64_t row = 0; row < s.rows(); ++row) {
    const bool ignored = row % 3 == 2 || row / s.rows_of_sequence == 1;
    labels.push_back(ignored ? -1.0 - static_cast<double>(row) : static_cast<double>(row));
  }
  return labels;
}

/// The last of several ranks has nothing but padding in some rows.
std::vector<double> some_stats(const Sizes& s) {
  TestRandom random(9);
  std::vector<double> stats;
  for (int64_t i = 0; i < s.ranks * s.rows(); ++i) {
    const bool is_padding = s.ranks > 1 && i >= (s.ranks - 1) * s.rows() && i % 3 == 0;
    stats.push_back(is_padding ? -std::numeric_limits<double>::infinity()
                               : random.uniform(-12.0, 12.0));
    stats.push_back(is_padding ? 0.0 : random.uniform(1.0, 1000.0));
    stats.push_back(i < s.rows() ? random.uniform(-12.0, 12.0) : 0.0);
  }
  return stats;
}

TEST(SequenceLosses, SumTheLabelsOfEachSequence) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Sizes& s : kAwkwardSizes) {
      KernelCase kernel({"sequence_losses",
                         to_attributes(SequenceLossesAttributes{s.sequences}),
                         {read(dtype, {s.ranks * s.rows(), 3}), read(DType::kI32, {s.rows()}),
                          write(dtype, {s.sequences}), write(dtype, {s.rows()})}});
      kernel.set(0, some_stats(s));
      kernel.set(1, some_labels(s));
      kernel.run(2);
      const std::vector<double> stats = kernel.values(0);
      const std::vector<double> labels = some_labels(s);
      std::vector<double> lse;
      std::vector<double> losses(static_cast<size_t>(s.sequences), 0.0);
      for (int64_t row = 0; row < s.rows(); ++row) {
        double sum = 0;
        double of_label = 0;
        for (int64_t rank = 0; rank < s.ranks; ++rank) {
          const auto at = static_cast<size_t>(3 * (rank * s.rows() + row));
          sum += stats[at + 1] * std::exp(stats[at]);
          of_label += stats[at + 2];
        }
        lse.push_back(std::log(sum));
        if (labels[static_cast<size_t>(row)] >= 0) {
          losses[static_cast<size_t>(row / s.rows_of_sequence)] += lse.back() - of_label;
        }
      }
      const double epsilon = rounding_error(dtype);
      expect_close(kernel.values(3), lse, {.absolute = 30 * epsilon, .relative = 4 * epsilon},
                   name_of(s));
      const double rows = static_cast<double>(s.rows_of_sequence);
      expect_close(kernel.values(2), losses,
                   {.absolute = 30 * rows * epsilon, .relative = 4 * epsilon}, name_of(s));
      EXPECT_EQ(kernel.values(2)[1], 0) << name_of(s);
    }
  }
}

KernelCase pair_case(DType dtype, int64_t sequences, const PreferenceLossAttributes& attributes) {
  KernelCase kernel({"preference_loss",
                     to_attributes(attributes),
                     {read(dtype, {sequences}), read(dtype, {sequences, 2}), write(dtype, {1}),
                      write(dtype, {5}), write(dtype, {sequences})}});
  TestRandom random(4);
  kernel.set(0, random.uniforms(sequences, 5, 60));
  std::vector<double> reference;
  for (int64_t i = 0; i < sequences; ++i) {
    reference.push_back(random.uniform(-60, -5));
    reference.push_back(attributes.kind == kIpo ? random.uniform(0.01, 1) : 1);
  }
  kernel.set(1, reference);
  return kernel;
}

/// Loss and figures by the formulas of the papers, in f64.
std::array<double, 6> naive(const KernelCase& kernel, const PreferenceLossAttributes& a) {
  const std::vector<double> losses = kernel.values(0);
  const std::vector<double> reference = kernel.values(1);
  std::array<double, 6> sums{};
  for (size_t i = 0; i < losses.size(); i += 2) {
    const double chosen = -losses[i] * reference[2 * i + 1];
    const double rejected = -losses[i + 1] * reference[2 * i + 3];
    const double ratio = (chosen - reference[2 * i] * reference[2 * i + 1]) -
                         (rejected - reference[2 * i + 2] * reference[2 * i + 3]);
    const double z = a.beta * ratio;
    sums[0] += a.kind == kDpo ? (1 - a.label_smoothing) * std::log1p(std::exp(-z)) +
                                    a.label_smoothing * std::log1p(std::exp(z))
               : a.kind == kHinge ? std::max(0.0, 1 - z)
                                  : std::pow(ratio - 1 / (2 * a.beta), 2);
    sums[1] += a.beta * (chosen - reference[2 * i] * reference[2 * i + 1]);
    sums[2] += a.beta * (rejected - reference[2 * i + 2] * reference[2 * i + 3]);
    sums[3] += z > 0 ? 1 : 0;
    sums[4] += chosen;
    sums[5] += rejected;
  }
  for (double& sum : sums) {
    sum /= static_cast<double>(a.pairs);
  }
  return sums;
}

const PreferenceLossAttributes kLosses[] = {{.beta = 0.05, .pairs = 7},
                                            {.beta = 0.4, .label_smoothing = 0.15, .pairs = 3},
                                            {.kind = kHinge, .beta = 0.03, .pairs = 8},
                                            {.kind = kIpo, .beta = 0.2, .pairs = 5}};

TEST(PreferenceLossKernel, IsTheMeanOverThePairsOfTheStep) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const PreferenceLossAttributes& attributes : kLosses) {
      for (const int64_t sequences : {2, 6, 40}) {
        KernelCase kernel = pair_case(dtype, sequences, attributes);
        kernel.run();
        const std::array<double, 6> expected = naive(kernel, attributes);
        const Tolerance close{.absolute = 1e-12, .relative = 4 * rounding_error(dtype)};
        const std::string name = fmt::format("{} of {}", attributes.kind, sequences);
        expect_close(kernel.values(2), {expected[0]}, close, name);
        expect_close(kernel.values(3), {expected.begin() + 1, expected.end()}, close, name);
      }
    }
  }
}

TEST(PreferenceLossKernel, GradientsAreThoseOfTheLoss) {
  for (const PreferenceLossAttributes& attributes : kLosses) {
    constexpr int64_t kSequences = 8;
    KernelCase kernel = pair_case(DType::kF64, kSequences, attributes);
    kernel.run();
    const std::vector<double> losses = kernel.values(0);
    const std::vector<double> gradient = kernel.values(4);
    for (size_t i = 0; i < losses.size(); ++i) {
      constexpr double kStep = 1e-4;
      const auto loss_at = [&](double change) {
        KernelCase moved = pair_case(DType::kF64, kSequences, attributes);
        std::vector<double> changed = losses;
        changed[i] += change;
        moved.set(0, changed);
        moved.run();
        return moved.values(2).front();
      };
      EXPECT_NEAR(gradient[i], (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep),
                  1e-6 * (1 + std::abs(gradient[i])))
          << attributes.kind << " " << i;
    }
  }
}

// Of ranks that share the sequences, one counts; all have the gradient.
TEST(PreferenceLossKernel, OtherRanksWriteNoLoss) {
  PreferenceLossAttributes attributes{.pairs = 3};
  KernelCase counted = pair_case(DType::kF32, 6, attributes);
  counted.run();
  attributes.counts = false;
  KernelCase other = pair_case(DType::kF32, 6, attributes);
  other.run();
  EXPECT_EQ(other.values(2), std::vector<double>{0});
  EXPECT_EQ(other.values(3), std::vector<double>(5, 0.0));
  EXPECT_EQ(other.values(4), counted.values(4));
}

// With a scale for each sequence, the gradient of each is that of a call of its own.
TEST(CrossEntropyBackward, TakesAScaleForEachSequence) {
  constexpr int64_t kSequences = 3;
  constexpr int64_t kRows = 5;
  constexpr int64_t kColumns = 13;
  const auto backward = [&](DType dtype, int64_t rows, int64_t sequences) {
    return KernelCase(
        {"cross_entropy_backward",
         to_attributes(
             CrossEntropyBackwardAttributes{.shard = {.vocabulary = 11}, .scales = {sequences}}),
         {read(dtype, {rows, kColumns}), read(DType::kI32, {rows}), read(wide(dtype), {sequences}),
          read(wide(dtype), {rows}), write(dtype, {rows, kColumns})}});
  };
  for (const DType dtype : kFloatDtypes) {
    KernelCase all = backward(dtype, kSequences * kRows, kSequences);
    TestRandom random(11);
    all.set(0, random.uniforms(kSequences * kRows * kColumns, -3, 3));
    std::vector<double> labels;
    for (int64_t row = 0; row < kSequences * kRows; ++row) {
      labels.push_back(row % 4 == 1 ? -1.0 : static_cast<double>(random.below(11)));
    }
    all.set(1, labels);
    all.set(2, {0.5, -2, 0.125});
    all.set(3, random.uniforms(kSequences * kRows, 2, 4));
    all.run(2);
    const auto part = [](const std::vector<double>& values, int64_t sequence) {
      const auto size = static_cast<std::ptrdiff_t>(values.size()) / kSequences;
      return std::vector<double>(values.begin() + sequence * size,
                                 values.begin() + (sequence + 1) * size);
    };
    for (int64_t sequence = 0; sequence < kSequences; ++sequence) {
      KernelCase one = backward(dtype, kRows, 1);
      for (const size_t operand : {0, 1, 2, 3}) {
        one.set(operand, part(all.values(operand), sequence));
      }
      one.run();
      EXPECT_EQ(one.values(4), part(all.values(4), sequence)) << sequence;
    }
  }
}

}  // namespace
}  // namespace braid
