#include "ops/drop_rows.h"

#include <cmath>

#include "support/drop_rows_cases.h"

namespace braid {
namespace {

/// Five tokens with two of three experts each, written out by hand: expert 0 has the pairs 0, 2, 4,
/// 7, expert 1 the pairs 1, 3, 5, 8, and expert 2 the pairs 6 and 9.
KernelCase by_hand(bool by_position) {
  KernelCase kernel({"drop_rows",
                     to_attributes(DropRowsAttributes{.capacity = 2, .by_position = by_position}),
                     {read(DType::kF32, {5, 2}), read(DType::kI32, {5, 2}), read(DType::kI32, {10}),
                      read(DType::kI32, {4}), write(DType::kI32, {5, 2}), write(DType::kI32, {10}),
                      write(DType::kI32, {4})}});
  kernel.set(0, {0.7, 0.3, 0.9, 0.1, 0.6, 0.4, 0.5, 0.7, 0.3, 0.2});
  kernel.set(1, {0, 4, 1, 5, 2, 6, 8, 3, 7, 9});
  kernel.set(2, {0, 2, 4, 7, 1, 3, 5, 8, 6, 9});
  kernel.set(3, {0, 4, 8, 10});
  return kernel;
}

// Expert 0 has weights .7 .9 .6 .7 and keeps .9 and the first .7; expert 1 has .3 .1 .4 .3 and
// keeps .4 and the first .3; expert 2 keeps what it has.
TEST(DropRows, KeepsTheLargestWeights) {
  KernelCase kernel = by_hand(false);
  kernel.run();
  EXPECT_EQ(kernel.values(5), (std::vector<double>{0, 2, 1, 5, 6, 9, 4, 7, 3, 8}));
  EXPECT_EQ(kernel.values(4), (std::vector<double>{0, 2, 1, 8, 6, 3, 4, 7, 9, 5}));
  EXPECT_EQ(kernel.values(6), (std::vector<double>{0, 2, 4, 6}));
}

TEST(DropRows, KeepsTheFirstRows) {
  KernelCase kernel = by_hand(true);
  kernel.run();
  EXPECT_EQ(kernel.values(5), (std::vector<double>{0, 2, 1, 3, 6, 9, 4, 7, 5, 8}));
  EXPECT_EQ(kernel.values(4), (std::vector<double>{0, 2, 1, 3, 6, 8, 4, 7, 9, 5}));
  EXPECT_EQ(kernel.values(6), (std::vector<double>{0, 2, 4, 6}));
}

/// Whether an expert drops pair b rather than pair a.
bool is_preferred(const std::vector<double>& weights, size_t a, size_t b) {
  const double x = std::isnan(weights[a]) ? HUGE_VAL : weights[a];
  const double y = std::isnan(weights[b]) ? HUGE_VAL : weights[b];
  if (std::isnan(weights[a]) != std::isnan(weights[b])) {
    return std::isnan(weights[a]);
  }
  return x > y || (x == y && a < b);
}

/// Pairs in the order of their new rows: an expert keeps a pair if fewer than `capacity` of its
/// pairs are preferred to it.
struct Expected {
  std::vector<double> pair_of;
  std::vector<double> offsets{0};
  int64_t most = 0;

  Expected(const DropCase& c, const KernelCase& kernel) {
    const std::vector<double> weights = kernel.values(0);
    const std::vector<double> sorted = kernel.values(2);
    const std::vector<double> all = kernel.values(3);
    std::vector<double> dropped;
    for (size_t e = 0; e + 1 < all.size(); ++e) {
      const auto begin = sorted.begin() + static_cast<int64_t>(all[e]);
      const auto end = sorted.begin() + static_cast<int64_t>(all[e + 1]);
      for (auto pair = begin; pair != end; ++pair) {
        const auto is_in_front = [&](double other) {
          return c.by_position ? other < *pair
                               : is_preferred(weights, static_cast<size_t>(other),
                                              static_cast<size_t>(*pair));
        };
        (std::count_if(begin, end, is_in_front) < c.capacity ? pair_of : dropped).push_back(*pair);
      }
      offsets.push_back(static_cast<double>(pair_of.size()));
      most = std::max<int64_t>(most, end - begin);
    }
    pair_of.insert(pair_of.end(), dropped.begin(), dropped.end());
  }
};

void expect_dropped(const DropCase& c, DType dtype) {
  KernelCase kernel = drop_rows_case(c, dtype);
  kernel.set(7, {100, 10, 1, 0, 0});
  const Expected expected(c, kernel);
  kernel.run(2);
  ASSERT_EQ(kernel.values(5), expected.pair_of) << name_of(c);
  EXPECT_EQ(kernel.values(6), expected.offsets) << name_of(c);
  const std::vector<double> row_of = kernel.values(4);
  for (size_t row = 0; row < expected.pair_of.size(); ++row) {
    ASSERT_EQ(row_of[static_cast<size_t>(expected.pair_of[row])], static_cast<double>(row));
  }
  const auto rows = static_cast<double>(c.sizes.rows());
  EXPECT_EQ(
      kernel.values(7),
      (std::vector<double>{100 + rows, 10 + rows - expected.offsets.back(),
                           static_cast<double>(expected.most), static_cast<double>(c.capacity),
                           std::max(1.0, std::floor(rows / static_cast<double>(c.sizes.experts)))}))
      << name_of(c);
}

TEST(DropRows, EqualsAPlainReference) {
  for (const DropCase& c : drop_cases({std::begin(kAwkwardRows), std::end(kAwkwardRows)})) {
    expect_dropped(c, DType::kF32);
    expect_dropped(c, DType::kF64);
  }
}

TEST(DropRows, CountsTheMostOfAllRuns) {
  KernelCase kernel = drop_rows_case({.sizes = kAwkwardRows[3], .capacity = 5});
  kernel.set(7, {0, 0, 1000, 0, 0});
  kernel.run();
  kernel.run();
  EXPECT_EQ(kernel.values(7)[RoomTally::kMost], 1000);
  EXPECT_EQ(kernel.values(7)[RoomTally::kRows], 2 * 256);
}

}  // namespace
}  // namespace braid
