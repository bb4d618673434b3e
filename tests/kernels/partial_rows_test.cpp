#include "ops/partial_maps.h"

#include <cmath>
#include <limits>

#include "support/partial_rows_cases.h"

namespace braid {
namespace {

std::vector<PartialRows> awkward_cases() {
  return partial_rows({std::begin(kAwkwardRows), std::end(kAwkwardRows)});
}

// Written out by hand: five pairs, two without one of the two experts, room for two rows.
TEST(SortRowsInto, LeavesOutPairsWithoutExpertAndThoseWithoutRoom) {
  const PartialRows c{.sizes = {5, 1, 2, 1}, .rows = 2};
  KernelCase kernel = sort_into_case(c);
  kernel.set(0, {1, 2, 0, 2, 1});
  kernel.run();
  EXPECT_EQ(kernel.values(1), (std::vector<double>{1, 2, 0, 2, 3})) << "2: none, 3: lacks room";
  EXPECT_EQ(kernel.values(2), (std::vector<double>{2, 0}));
  EXPECT_EQ(kernel.values(3), (std::vector<double>{0, 1, 2}));
  EXPECT_EQ(kernel.values(4), (std::vector<double>{1, 2})) << "all";
}

TEST(SortRowsInto, EqualsAPlainReference) {
  for (const PartialRows& c : awkward_cases()) {
    KernelCase kernel = sort_into_case(c);
    const auto experts = kernel.values(0);
    kernel.run(2);
    const auto no_row = static_cast<double>(c.rows);
    std::vector<double> row_of(experts.size(), no_row);
    std::vector<double> pair_of;
    std::vector<double> offsets{0};
    for (int64_t e = 0; e < c.sizes.experts; ++e) {
      for (size_t pair = 0; pair < experts.size(); ++pair) {
        if (experts[pair] == static_cast<double>(e)) {
          const bool fits = std::ssize(pair_of) < c.rows;
          row_of[pair] = fits ? static_cast<double>(pair_of.size()) : no_row + (c.drops ? 0 : 1);
          if (fits) {
            pair_of.push_back(static_cast<double>(pair));
          }
        }
      }
      offsets.push_back(static_cast<double>(pair_of.size()));
    }
    pair_of.resize(static_cast<size_t>(c.rows), static_cast<double>(c.pairs()));
    EXPECT_EQ(kernel.values(1), row_of) << name_of(c);
    EXPECT_EQ(kernel.values(2), pair_of) << name_of(c);
    EXPECT_EQ(kernel.values(3), offsets) << name_of(c);
  }
}

// Rows of no pair keep what was in them.
TEST(GatherRows, OfPartialMapsCopiesTheTokensThatThereAre) {
  for (const DType dtype : kFloatDtypes) {
    for (const PartialRows& c : awkward_cases()) {
      KernelCase kernel = partial_gather_case(dtype, c);
      const auto x = kernel.values(0);
      const auto pair_of = kernel.values(1);
      kernel.run(2);
      const auto y = kernel.values(3);
      for (int64_t i = 0; i < std::ssize(y); ++i) {
        const auto pair = static_cast<int64_t>(pair_of[size_t(i / c.sizes.width)]);
        if (pair == c.pairs()) {
          ASSERT_TRUE(std::isnan(y[size_t(i)])) << name_of(c);
        } else {
          const int64_t from = pair / c.sizes.per_token * c.sizes.width + i % c.sizes.width;
          ASSERT_EQ(y[size_t(i)], x[size_t(from)]) << name_of(c);
        }
      }
    }
  }
}

TEST(GatherRows, OfPartialMapsCopiesFp8) {
  const PartialRows c{.sizes = {7, 2, 5, 33}, .rows = 9};
  KernelCase kernel = partial_gather_case(DType::kF8E4M3, c);
  const auto x = kernel.bytes(0);
  const auto pair_of = kernel.values(1);
  kernel.run();
  const auto y = kernel.bytes(3);
  for (size_t i = 0; i < y.size(); ++i) {
    const auto pair = static_cast<size_t>(pair_of[i / 33]);
    ASSERT_EQ(y[i], pair == 14 ? std::byte{0xFF} : x[pair / 2 * 33 + i % 33]);
  }
}

TEST(SumRows, OfPartialMapsAddsNothingForNoneAndNanForLackingRoom) {
  for (const DType dtype : kFloatDtypes) {
    for (const PartialRows& c : awkward_cases()) {
      const int64_t width = c.sizes.width;
      KernelCase kernel = partial_sum_case(dtype, c);
      const auto x = kernel.values(0);
      const auto row_of = kernel.values(1);
      kernel.run(2);
      std::vector<double> expected;
      for (int64_t i = 0; i < c.sizes.tokens * width; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < c.sizes.per_token; ++j) {
          const auto row = static_cast<int64_t>(row_of[size_t(i / width * c.sizes.per_token + j)]);
          sum += row < c.rows        ? x[size_t(row * width + i % width)]
                 : row == c.rows + 1 ? std::numeric_limits<double>::quiet_NaN()
                                     : 0.0;
        }
        expected.push_back(sum);
      }
      expect_close(kernel.values(3), expected,
                   sum_tolerance(dtype, static_cast<double>(c.sizes.per_token)), name_of(c));
    }
  }
}

TEST(PermuteElems, OfPartialMapsGivesZeroForNoneAndNanForLackingRoom) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const PartialRows& c : awkward_cases()) {
      for (const bool back : {false, true}) {
        KernelCase kernel = partial_permute_case(dtype, c, back);
        const auto x = kernel.values(0);
        const auto order = kernel.values(1);
        kernel.run(2);
        std::vector<double> expected;
        for (const double from : order) {
          const bool lacks = back && from == static_cast<double>(x.size() + 1);
          expected.push_back(from < static_cast<double>(x.size()) ? x[size_t(from)]
                             : lacks ? std::numeric_limits<double>::quiet_NaN()
                                     : 0.0);
        }
        expect_close(kernel.values(3), expected, {}, name_of(c));
      }
    }
  }
}

// The rows that there are have the bits of rounding what gather_rows makes.
TEST(QuantizeGathered, OfPartialMapsRoundsTheTokensThatThereAre) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const PartialRows& c : partial_rows({std::begin(kSentRows), std::end(kSentRows)})) {
      KernelCase kernel = partial_quantize_case(dtype, c);
      const auto pair_of = kernel.values(1);
      kernel.run(2);
      KernelCase whole =
          quantize_gathered_case(dtype, {c.sizes.tokens, 1, 1, c.sizes.width}, DType::kF8E4M3);
      std::vector<double> tokens;
      for (int64_t t = 0; t < c.sizes.tokens; ++t) {
        tokens.push_back(static_cast<double>(t));
      }
      whole.set(0, kernel.values(0));
      whole.set(1, tokens);
      whole.set(2, tokens);
      whole.run();
      const auto width = static_cast<size_t>(c.sizes.width);
      int64_t rounded = 0;
      for (size_t row = 0; row < pair_of.size(); ++row) {
        const auto pair = static_cast<int64_t>(pair_of[row]);
        if (pair == c.pairs()) {
          EXPECT_EQ(kernel.bytes(3)[row * width], std::byte{0xFF}) << "not written";
          continue;
        }
        ++rounded;
        const auto token = static_cast<size_t>(pair / c.sizes.per_token);
        for (size_t i = 0; i < width; ++i) {
          ASSERT_EQ(kernel.bytes(3)[row * width + i], whole.bytes(3)[token * width + i]);
        }
        ASSERT_EQ(kernel.values(4)[row * width / 128], whole.values(4)[token * width / 128]);
      }
      EXPECT_EQ(kernel.values(5)[Fp8Tally::kElems], static_cast<double>(rounded * c.sizes.width));
    }
  }
}

}  // namespace
}  // namespace braid
