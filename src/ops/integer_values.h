#pragma once

#include <cstdint>
#include <vector>

#include "ir/op_spec.h"

namespace braid {

/// What an op requires of the elements of an integer operand that it reads.
enum class IntegerRule : uint8_t {
  kBelow,         ///< each is in [0, limit)
  kPermutation,   ///< each number in [0, number of elements) once; if several operands of a spec
                  ///< have this rule, they are each other's inverses
  kOffsets,       ///< ascending from 0 to limit
  kOffsetsOfAll,  ///< the same in each run of `run` elements
  kPartialMap,    ///< each number in [0, limit) at most once, or `limit` (ops/partial_maps.h);
                  ///< two operands of a spec are each other's inverses
};

struct IntegerNeed {
  IntegerRule rule = IntegerRule::kBelow;
  int64_t limit = INT32_MAX;
  int64_t run = 1;  ///< of kOffsetsOfAll
};

/// The need of an i32 operand, by OpDefinition::integers.
IntegerNeed integer_need(const OpSpec& spec, size_t operand);

/// Random elements that an op accepts in an i32 operand, the same for the same spec. Offsets divide
/// their range into equal parts, but for one element. Permutations are their own inverses. Partial
/// maps map as many numbers as they can to themselves.
std::vector<int32_t> valid_integers(const OpSpec& spec, size_t operand);

}  // namespace braid
