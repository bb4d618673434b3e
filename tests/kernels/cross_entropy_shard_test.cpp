#include <gmock/gmock.h>

#include "base/errors.h"
#include "ops/cross_entropy.h"
#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr double kScale = 0.25;

/// Logits of `ranks` ranks with `columns` columns each.
struct Sizes {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t ranks = 0;
  int64_t vocabulary = 0;

  int64_t all_columns() const { return ranks * columns; }
  CrossEntropyShardAttributes shard(int64_t rank) const {
    return {.vocabulary = vocabulary, .vocabulary_begin = rank * columns};
  }
};

/// Even, with padding on the last rank, and with ranks that hold nothing but padding.
const Sizes kAwkwardSizes[] = {{1, 1, 1, 1},      {5, 7, 2, 14},     {7, 16, 3, 41},
                               {9, 32, 4, 31},    {3, 128, 3, 130},  {13, 33, 8, 200},
                               {67, 512, 2, 999}, {2, 3000, 2, 5999}};

std::string name_of(const Sizes& s) {
  return fmt::format("{} rows, {} ranks of {} columns, vocabulary {}", s.rows, s.ranks, s.columns,
                     s.vocabulary);
}

/// Over all ranks; padding columns hold what a kernel must not look at.
std::vector<double> some_logits(const Sizes& s, DType dtype) {
  std::vector<double> logits = TestRandom(3).uniforms(s.rows * s.all_columns(), -5, 5);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<int64_t>(i) % s.all_columns() < s.vocabulary
                    ? rounded_to(dtype, logits[i])
                    : std::numeric_limits<double>::quiet_NaN();
  }
  return logits;
}

/// Every fifth label is to be ignored.
std::vector<double> some_labels(const Sizes& s) {
  TestRandom random(7);
  std::vector<double> labels;
  for (int64_t row = 0; row < s.rows; ++row) {
    labels.push_back(row % 5 == 3 ? -1.0 - static_cast<double>(row)
                                  : static_cast<double>(random.below(s.vocabulary)));
  }
  return labels;
}

std::vector<double> columns_of_rank(const Sizes& s, const std::vector<double>& all, int64_t rank) {
  std::vector<double> part;
  for (int64_t row = 0; row < s.rows; ++row) {
    const auto begin = all.begin() + row * s.all_columns() + rank * s.columns;
    part.insert(part.end(), begin, begin + s.columns);
  }
  return part;
}

KernelCase partial_case(const Sizes& s, DType dtype, const std::vector<double>& logits,
                        int64_t rank) {
  KernelCase kernel({"cross_entropy_partial",
                     to_attributes(s.shard(rank)),
                     {read(dtype, {s.rows, s.columns}), read(DType::kI32, {s.rows}),
                      write(wide(dtype), {s.rows, kCrossEntropyStats})}});
  kernel.set(0, columns_of_rank(s, logits, rank));
  kernel.set(1, some_labels(s));
  return kernel;
}

/// Partial statistics of all ranks, then their merge.
KernelCase merged(const Sizes& s, DType dtype, const std::vector<double>& logits,
                  int num_workers = 1, double z_loss = 0) {
  std::vector<double> stats;
  for (int64_t rank = 0; rank < s.ranks; ++rank) {
    KernelCase kernel = partial_case(s, dtype, logits, rank);
    kernel.run(num_workers);
    const std::vector<double> part = kernel.values(2);
    stats.insert(stats.end(), part.begin(), part.end());
  }
  const DType w = wide(dtype);
  OpSpec spec{"cross_entropy_merge",
              to_attributes(CrossEntropyMergeAttributes{{z_loss}}),
              {read(w, {s.ranks * s.rows, kCrossEntropyStats}), read(DType::kI32, {s.rows}),
               read(w, {1}), write(w, {1}), write(w, {s.rows})}};
  if (z_loss > 0) {
    spec.operands.push_back(write(w, {1}));
  }
  KernelCase kernel(spec);
  kernel.set(0, stats);
  kernel.set(1, some_labels(s));
  kernel.set_all(2, kScale);
  kernel.run(num_workers);
  return kernel;
}

/// Log-sum-exp of the valid columns of a row, the textbook way.
double naive_lse(const Sizes& s, const std::vector<double>& logits, int64_t row) {
  const auto begin = logits.begin() + row * s.all_columns();
  const double max = *std::max_element(begin, begin + s.vocabulary);
  double sum = 0;
  for (int64_t i = 0; i < s.vocabulary; ++i) {
    sum += std::exp(begin[i] - max);
  }
  return max + std::log(sum);
}

TEST(ShardedCrossEntropy, MergesToTheLossOfTheWhole) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes& s : kAwkwardSizes) {
      const std::vector<double> logits = some_logits(s, dtype);
      const std::vector<double> labels = some_labels(s);
      std::vector<double> lse;
      double loss = 0;
      for (int64_t row = 0; row < s.rows; ++row) {
        lse.push_back(naive_lse(s, logits, row));
        const auto label = static_cast<int64_t>(labels[static_cast<size_t>(row)]);
        loss += label < 0 ? 0.0
                          : lse.back() - logits[static_cast<size_t>(row * s.all_columns() + label)];
      }
      KernelCase kernel = merged(s, dtype, logits, 2);
      // As for the whole: sums of up to 2048 terms in one lane, exp to 2 units, then a log.
      const double epsilon = rounding_error(wide(dtype));
      expect_close(kernel.values(4), lse, {.absolute = 50 * epsilon, .relative = 4 * epsilon},
                   "lse " + name_of(s));
      expect_close(
          kernel.values(3), {kScale * loss},
          {.absolute = 50 * epsilon * static_cast<double>(s.rows), .relative = 4 * epsilon},
          "loss " + name_of(s));
    }
  }
}

TEST(ShardedCrossEntropy, StatisticsAreThoseOfTheRanksColumns) {
  const Sizes s{2, 2, 3, 4};
  const std::vector<double> logits = {1, 3, 2, 2, 9, 9, -1, 0, 4, 5, 9, 9};
  const std::vector<double> expected[] = {{3, 1 + std::exp(-2.0), 0, 0, 1 + std::exp(-1.0), 0},
                                          {2, 2, 2, 5, 1 + std::exp(-1.0), 0},
                                          {-std::numeric_limits<double>::infinity(), 0, 0,
                                           -std::numeric_limits<double>::infinity(), 0, 0}};
  for (int64_t rank = 0; rank < 3; ++rank) {
    KernelCase kernel = partial_case(s, DType::kF64, logits, rank);
    kernel.set(1, {3, -1});
    kernel.run();
    expect_close(kernel.values(2), expected[rank], {.relative = 1e-15},
                 fmt::format("rank {}", rank));
  }
}

TEST(ShardedCrossEntropy, BackwardGivesTheRanksColumnsOfTheGradient) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes& s : kAwkwardSizes) {
      const std::vector<double> logits = some_logits(s, dtype);
      const std::vector<double> labels = some_labels(s);
      const KernelCase forward = merged(s, dtype, logits);
      const double epsilon = rounding_error(wide(dtype));
      for (int64_t rank = 0; rank < s.ranks; ++rank) {
        KernelCase backward(
            {"cross_entropy_backward",
             to_attributes(s.shard(rank)),
             {read(dtype, {s.rows, s.columns}), read(DType::kI32, {s.rows}), read(wide(dtype), {1}),
              read(wide(dtype), {s.rows}), write(dtype, {s.rows, s.columns})}});
        backward.set(0, columns_of_rank(s, logits, rank));
        backward.set(1, labels);
        backward.set_all(2, kScale);
        backward.set(3, forward.values(4));
        backward.run(2);
        std::vector<double> lse;
        for (int64_t row = 0; row < s.rows; ++row) {
          lse.push_back(naive_lse(s, logits, row));
        }
        std::vector<double> expected;
        for (int64_t i = 0; i < s.rows * s.columns; ++i) {
          const int64_t row = i / s.columns;
          const int64_t token = rank * s.columns + i % s.columns;
          const auto label = static_cast<int64_t>(labels[static_cast<size_t>(row)]);
          const double p = std::exp(logits[static_cast<size_t>(row * s.all_columns() + token)] -
                                    lse[static_cast<size_t>(row)]);
          expected.push_back(label < 0 || token >= s.vocabulary
                                 ? 0.0
                                 : kScale * (p - (token == label ? 1.0 : 0.0)));
        }
        expect_close(backward.values(4), expected,
                     {.absolute = 10 * epsilon, .relative = 60 * epsilon + rounding_error(dtype)},
                     fmt::format("rank {} of {}", rank, name_of(s)));
      }
    }
  }
}

TEST(ShardedCrossEntropy, MergesToTheLogSumExpLossOfTheWhole) {
  constexpr double kZLoss = 0.02;
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes& s : kAwkwardSizes) {
      const std::vector<double> logits = some_logits(s, dtype);
      const std::vector<double> labels = some_labels(s);
      double sum = 0;
      for (int64_t row = 0; row < s.rows; ++row) {
        const double lse = naive_lse(s, logits, row);
        sum += labels[static_cast<size_t>(row)] < 0 ? 0.0 : lse * lse;
      }
      KernelCase kernel = merged(s, dtype, logits, 2, kZLoss);
      const KernelCase plain = merged(s, dtype, logits, 2);
      EXPECT_TRUE(kernel.bytes(3) == plain.bytes(3)) << name_of(s);
      const double epsilon = rounding_error(wide(dtype));
      expect_close(kernel.values(5), {kScale * kZLoss * sum},
                   {.absolute = 50 * epsilon, .relative = 50 * epsilon}, name_of(s));
    }
  }
}

/// The gradient of loss + z with respect to the logits of all ranks.
std::vector<double> gradient_of_all(const Sizes& s, const std::vector<double>& logits,
                                    double z_loss) {
  const std::vector<double> lse = merged(s, DType::kF64, logits).values(4);
  std::vector<double> gradient(logits.size());
  for (int64_t rank = 0; rank < s.ranks; ++rank) {
    KernelCase backward(
        {"cross_entropy_backward",
         to_attributes(CrossEntropyBackwardAttributes{.shard = s.shard(rank), .z = {z_loss}}),
         {read(DType::kF64, {s.rows, s.columns}), read(DType::kI32, {s.rows}),
          read(DType::kF64, {1}), read(DType::kF64, {s.rows}),
          write(DType::kF64, {s.rows, s.columns})}});
    backward.set(0, columns_of_rank(s, logits, rank));
    backward.set(1, some_labels(s));
    backward.set_all(2, kScale);
    backward.set(3, lse);
    backward.run();
    const std::vector<double> part = backward.values(4);
    for (int64_t i = 0; i < s.rows * s.columns; ++i) {
      gradient[static_cast<size_t>(i / s.columns * s.all_columns() + rank * s.columns +
                                   i % s.columns)] = part[static_cast<size_t>(i)];
    }
  }
  return gradient;
}

TEST(ShardedCrossEntropy, GradientAgreesWithDifferencesOfTheMergedLoss) {
  const Sizes s{4, 3, 3, 7};
  const std::vector<double> logits = TestRandom(5).uniforms(s.rows * s.all_columns(), -2, 2);
  for (const double z_loss : {0.0, 0.3}) {
    const auto loss = [&](const std::vector<double>& x) {
      const KernelCase kernel = merged(s, DType::kF64, x, 1, z_loss);
      return kernel.values(3)[0] + (z_loss > 0 ? kernel.values(5)[0] : 0.0);
    };
    expect_gradient(loss, logits, gradient_of_all(s, logits, z_loss), "d_logits");
  }
}

TEST(ShardedCrossEntropy, HugeLogitsOfOneRankDoNotOverflow) {
  const Sizes s{3, 2, 2, 4};
  const std::vector<double> logits = {1e4, -1e4, 0, 0, -1e4, -1e4, 1e4, 1e4, -1e4, -1e4, -1e4, 2e4};
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    expect_close(merged(s, dtype, logits).values(4), {1e4, 1e4 + std::log(2.0), 2e4},
                 {.relative = 2 * rounding_error(dtype)}, "lse");
  }
}

TEST(ShardedCrossEntropy, MinusInfinityOnAllColumnsOfARankIsImpossible) {
  const double no = -std::numeric_limits<double>::infinity();
  const Sizes s{1, 2, 2, 4};
  KernelCase kernel = merged(s, DType::kF32, {no, no, 1.0, 1.0});
  expect_close(kernel.values(4), {1 + std::log(2.0)}, {.relative = 1e-6});
}

TEST(ShardedCrossEntropy, NanAndInfinityOfAnyRankReachTheLoss) {
  const Sizes s{1, 5, 3, 15};
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const size_t at : {0u, 7u, 14u}) {
      std::vector<double> logits = TestRandom(2).uniforms(15, -1, 1);
      logits[at] = bad;
      EXPECT_TRUE(std::isnan(merged(s, DType::kF32, logits).values(3)[0])) << bad << " at " << at;
    }
  }
}

TEST(ShardedCrossEntropy, EveryRankNamesALabelThatNoneKnows) {
  const Sizes s{200, 8, 3, 20};
  for (int64_t rank = 0; rank < s.ranks; ++rank) {
    KernelCase kernel = partial_case(s, DType::kF32, some_logits(s, DType::kF32), rank);
    std::vector<double> labels(200, 3.0);
    labels[11] = 20;
    labels[150] = 1000;
    kernel.set(1, labels);
    EXPECT_THAT(
        [&] {
          try {
            kernel.run(3);
            return std::string("no error");
          } catch (const DeviceError& error) {
            return std::string(error.what());
          }
        }(),
        testing::HasSubstr("label 20 in row 11 is not below the vocabulary of 20"));
  }
}

TEST(ShardedCrossEntropy, WorkersDoNotChangeResults) {
  const Sizes s{211, 512, 2, 1003};
  for (const DType dtype : kFloatDtypes) {
    const std::vector<double> logits = some_logits(s, dtype);
    expect_same_for_any_workers([&] { return partial_case(s, dtype, logits, 1); });
  }
}

}  // namespace
}  // namespace braid
