#pragma once

#include <limits>

#include "ops/drop_rows.h"
#include "ops/expert_exchange.h"
#include "support/expert_rows_cases.h"

/// Rows of a random routing beside the capacity of experts.
namespace braid {

/// Weights by which rows are compared.
enum class TestWeights : uint8_t {
  kRandom,
  kFew,      ///< four values, so that many are equal; one is 0, with either sign
  kSpecial,  ///< NaN of both signs, infinity, negative and subnormal numbers among others
};

inline std::vector<double> test_weights(TestWeights kind, int64_t count) {
  TestRandom random(7);
  std::vector<double> list = random.uniforms(count, 0.0, 1.0);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double special[] = {nan, -nan, std::numeric_limits<double>::infinity(), -0.5, 0x1.0p-140};
  const double few[] = {0.25, 0.0, 0.75, -0.0};
  for (double& weight : list) {
    if (kind == TestWeights::kFew) {
      weight = few[random.below(4)];
    } else if (kind == TestWeights::kSpecial && random.below(3) == 0) {
      weight = special[random.below(5)];
    }
  }
  return list;
}

struct DropCase {
  RowSizes sizes;
  int64_t capacity = 1;
  bool by_position = false;
  TestWeights weights = TestWeights::kRandom;
  bool to_one = false;  ///< all rows are of the last expert
};

inline KernelCase drop_rows_case(const DropCase& c, DType weights = DType::kF32) {
  const RowSizes& s = c.sizes;
  const Shape pairs{s.tokens, s.per_token};
  const Shape rows{s.rows()};
  const Shape offsets{s.experts + 1};
  KernelCase kernel(
      {"drop_rows",
       to_attributes(DropRowsAttributes{
           .capacity = c.capacity, .by_position = c.by_position, .watch = {true}}),
       {read(weights, pairs), read(DType::kI32, pairs), read(DType::kI32, rows),
        read(DType::kI32, offsets), write(DType::kI32, pairs), write(DType::kI32, rows),
        write(DType::kI32, offsets), tally_spec(RoomTally::kSize)}});
  KernelCase sorted = with_random_experts(sort_rows_case(s), s);
  if (c.to_one) {
    sorted.set_all(0, static_cast<double>(s.experts - 1));
  }
  sorted.run();
  kernel.set(0, test_weights(c.weights, s.rows()));
  kernel.set(1, sorted.values(1));
  kernel.set(2, sorted.values(2));
  kernel.set(3, sorted.values(3));
  return kernel;
}

/// Capacities around the rows of equal loads, and those at which nothing or all but one are
/// dropped, in both orders and with all weights.
inline std::vector<DropCase> drop_cases(const std::vector<RowSizes>& sizes) {
  std::vector<DropCase> cases;
  for (const RowSizes& s : sizes) {
    const int64_t equal = std::max<int64_t>(1, s.rows() / s.experts);
    for (const int64_t capacity :
         {int64_t{1}, equal, equal + 1, 2 * equal, s.rows(), s.rows() + 3}) {
      for (const bool to_one : {false, true}) {
        cases.push_back({s, capacity, true, TestWeights::kRandom, to_one});
        for (const TestWeights weights :
             {TestWeights::kRandom, TestWeights::kFew, TestWeights::kSpecial}) {
          cases.push_back({s, capacity, false, weights, to_one});
        }
      }
    }
  }
  return cases;
}

inline std::string name_of(const DropCase& c) {
  return fmt::format("T={} K={} E={} capacity={} {} weights {}{}", c.sizes.tokens,
                     c.sizes.per_token, c.sizes.experts, c.capacity,
                     c.by_position ? "by position" : "by weight", static_cast<int>(c.weights),
                     c.to_one ? ", all to one" : "");
}

}  // namespace braid
