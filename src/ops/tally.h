#pragma once

#include <cstdint>
#include <string_view>

#include "ops/op.h"

namespace braid {

/// Numbers that tasks of a training step count and the host reads: the last operand of a spec with
/// the attribute `watch`, i64. Counts only grow within a step, as sums or maxima of integers, so
/// any order of tasks and of threads gives the same bits.
struct WatchAttribute {
  bool watch = false;
  void fields(auto&& visit) { visit(kTallyAttribute, watch); }
  friend bool operator==(const WatchAttribute&, const WatchAttribute&) = default;
};

/// The operand of a tally of that many numbers.
inline OperandSpec tally_spec(int64_t elems) {
  return {.dtype = DType::kI64, .access = Access::kReadWrite, .shape = {elems}};
}

/// The buffer of all tallies of a rank's training step, i64 [elements of all], zero at its start.
inline constexpr std::string_view kTalliesBuffer = "tallies";

}  // namespace braid
