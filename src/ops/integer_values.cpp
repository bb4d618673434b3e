#include "ops/integer_values.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "ops/op.h"

namespace braid {
namespace {

using Random = std::mt19937_64;

void fill_below(std::span<int32_t> values, int64_t limit) {
  Random random(2);
  std::uniform_int_distribution<int32_t> value(0, static_cast<int32_t>(limit - 1));
  std::ranges::generate(values, [&] { return value(random); });
}

/// Random pairs of numbers that exchange their places; of an odd number, one stays.
void fill_permutation(std::span<int32_t> values) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, Random(2));
  std::iota(values.begin(), values.end(), 0);
  for (size_t i = 0; i + 1 < order.size(); i += 2) {
    std::swap(values[static_cast<size_t>(order[i])], values[static_cast<size_t>(order[i + 1])]);
  }
}

void fill_offsets(std::span<int32_t> values, int64_t limit) {
  const auto parts = std::max<int64_t>(1, std::ssize(values) - 1);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int32_t>(static_cast<int64_t>(i) * limit / parts);
  }
}

}  // namespace

IntegerNeed integer_need(const OpSpec& spec, size_t operand) {
  const OpDefinition& op = find_op(spec.op);
  return op.integers == nullptr ? IntegerNeed{} : op.integers(spec, operand);
}

std::vector<int32_t> valid_integers(const OpSpec& spec, size_t operand) {
  const IntegerNeed need = integer_need(spec, operand);
  std::vector<int32_t> values(static_cast<size_t>(spec.operands.at(operand).shape.num_elems()));
  switch (need.rule) {
    case IntegerRule::kBelow:
      fill_below(values, need.limit);
      break;
    case IntegerRule::kPermutation:
      fill_permutation(values);
      break;
    case IntegerRule::kOffsets:
      fill_offsets(values, need.limit);
      break;
    case IntegerRule::kOffsetsOfAll:
      for (size_t i = 0; i < values.size(); i += static_cast<size_t>(need.run)) {
        fill_offsets(std::span(values).subspan(i, static_cast<size_t>(need.run)), need.limit);
      }
      break;
    case IntegerRule::kPartialMap:
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<int32_t>(std::min<int64_t>(static_cast<int64_t>(i), need.limit));
      }
      break;
  }
  return values;
}

}  // namespace braid
