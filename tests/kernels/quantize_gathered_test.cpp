#include "ops/quantize_gathered.h"

#include <cmath>
#include <limits>

#include "support/sent_rows_cases.h"

namespace braid {
namespace {

constexpr int64_t kBlock = GroupedColumns::kBlock;

/// The rows of gather_rows, as quantize_grouped rounds them for one expert that has all.
KernelCase rounded_after(DType dtype, const RowSizes& s, const std::vector<double>& x,
                         DType format) {
  KernelCase gathered = gather_rows_case(dtype, s);
  gathered.set(0, x);
  gathered.run();
  const Groups g{.counts = {s.rows()}, .in = s.width, .out = 0};
  KernelCase copies = quantize_grouped_case(dtype, g, {.column = false}, format);
  copies.set(0, gathered.values(3));
  copies.run();
  return copies;
}

constexpr DType kTypes[] = {DType::kF32, DType::kBF16};
constexpr DType kFormats[] = {DType::kF8E4M3, DType::kF8E5M2};

// That rows are rounded before they travel changes no bit of what arrives.
TEST(QuantizeGathered, HasTheBitsOfRoundingTheGatheredRows) {
  for (const DType dtype : kTypes) {
    for (const DType format : kFormats) {
      for (const RowSizes& s : kSentRows) {
        KernelCase kernel = quantize_gathered_case(dtype, s, format);
        kernel.run(2);
        const KernelCase expected = rounded_after(dtype, s, kernel.values(0), format);
        EXPECT_EQ(kernel.bytes(3), expected.bytes(2));
        const std::vector<double> scales = kernel.values(4);
        const std::vector<double> by_block = expected.values(3);
        const int64_t blocks = s.width / kBlock;
        for (int64_t r = 0; r < s.rows(); ++r) {
          for (int64_t b = 0; b < blocks; ++b) {
            EXPECT_EQ(scales[size_t(r * blocks + b)], by_block[size_t(b * s.rows() + r)]);
          }
        }
      }
    }
  }
}

TEST(QuantizeGathered, IsTheRowOverItsScaleRoundedOnce) {
  const RowSizes s{.tokens = 5, .per_token = 3, .experts = 4, .width = 256};
  KernelCase kernel = quantize_gathered_case(DType::kF32, s, DType::kF8E4M3);
  const std::vector<double> x = kernel.values(0);
  const std::vector<double> pair_of = kernel.values(1);
  kernel.run();
  const std::vector<double> y = kernel.values(3);
  const std::vector<double> scales = kernel.values(4);
  for (int64_t r = 0; r < s.rows(); ++r) {
    const auto token = static_cast<int64_t>(pair_of[size_t(r)]) / s.per_token;
    for (int64_t b = 0; b < s.width / kBlock; ++b) {
      const auto from = x.begin() + token * s.width + b * kBlock;
      double largest = 0;
      std::for_each(from, from + kBlock,
                    [&](double value) { largest = std::max(largest, std::abs(value)); });
      const double scale = std::ldexp(1.0, int(std::ceil(std::log2(largest / 448))));
      EXPECT_EQ(scales[size_t(r * 2 + b)], scale);
      for (int64_t i = 0; i < kBlock; ++i) {
        EXPECT_EQ(y[size_t(r * s.width + b * kBlock + i)],
                  rounded_to(DType::kF8E4M3, from[i] / scale));
      }
    }
  }
}

TEST(QuantizeGathered, WritesNoRowOfADroppedPair) {
  for (const RowSizes& s : kSentRows) {
    KernelCase whole = quantize_gathered_case(DType::kBF16, s, DType::kF8E4M3);
    whole.run();
    for (const int64_t end : ends_of_rows(s)) {
      KernelCase kernel = quantize_gathered_case(DType::kBF16, s, DType::kF8E4M3, end, true);
      const auto unwritten = kernel.values(4);
      kernel.run(2);
      const auto check = [&](size_t operand, int64_t width) {
        const auto found = kernel.values(operand);
        const auto expected = whole.values(operand - 1);
        for (size_t i = 0; i < found.size(); ++i) {
          if (static_cast<int64_t>(i) < end * width) {
            EXPECT_EQ(found[i], expected[i]);
          } else {
            EXPECT_TRUE(std::isnan(found[i])) << i;
          }
        }
      };
      check(4, s.width);
      check(5, s.width / kBlock);
      EXPECT_EQ(kernel.values(6)[Fp8Tally::kElems], static_cast<double>(end * s.width));
    }
  }
}

TEST(QuantizeGathered, InfinityMakesItsBlockNaN) {
  const RowSizes s{.tokens = 3, .per_token = 2, .experts = 2, .width = 256};
  KernelCase kernel = quantize_gathered_case(DType::kBF16, s, DType::kF8E4M3);
  std::vector<double> x = kernel.values(0);
  x[size_t(s.width + 130)] = std::numeric_limits<double>::infinity();  // token 1, block 1
  kernel.set(0, x);
  kernel.run();
  const std::vector<double> pair_of = kernel.values(1);
  const std::vector<double> y = kernel.values(3);
  for (size_t i = 0; i < y.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / s.width;
    const auto token = static_cast<int64_t>(pair_of[size_t(row)]) / s.per_token;
    const bool is_lost = token == 1 && static_cast<int64_t>(i) % s.width >= kBlock;
    EXPECT_EQ(std::isnan(y[i]), is_lost);
    EXPECT_EQ(std::isnan(kernel.values(4)[i / size_t{kBlock}]), is_lost);
  }
}

TEST(QuantizeGathered, CountsWhatRowsLose) {
  const RowSizes s{.tokens = 9, .per_token = 4, .experts = 6, .width = 256};
  KernelCase kernel = quantize_gathered_case(DType::kF32, s, DType::kF8E4M3, -1, true);
  kernel.run(3);
  const std::vector<double> x = kernel.values(0);
  const std::vector<double> pair_of = kernel.values(1);
  const std::vector<double> y = kernel.values(3);
  int64_t flushed = 0;
  for (int64_t r = 0; r < s.rows(); ++r) {
    const auto token = static_cast<int64_t>(pair_of[size_t(r)]) / s.per_token;
    for (int64_t c = 0; c < s.width; ++c) {
      flushed += x[size_t(token * s.width + c)] != 0 && y[size_t(r * s.width + c)] == 0 ? 1 : 0;
    }
  }
  const std::vector<double> tally = kernel.values(5);
  EXPECT_GT(flushed, 0);
  EXPECT_EQ(tally[Fp8Tally::kFlushed], static_cast<double>(flushed));
  EXPECT_EQ(tally[Fp8Tally::kSaturated], 0);
  EXPECT_EQ(tally[Fp8Tally::kElems], static_cast<double>(s.rows() * s.width));
}

TEST(QuantizeGathered, DoesNotDependOnTheNumberOfWorkers) {
  const RowSizes s{.tokens = 200, .per_token = 4, .experts = 16, .width = 384};
  expect_same_for_any_workers(
      [&] { return quantize_gathered_case(DType::kBF16, s, DType::kF8E4M3, 700, true); });
}

}  // namespace
}  // namespace braid
