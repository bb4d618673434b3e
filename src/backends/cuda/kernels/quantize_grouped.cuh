#pragma once

#include <cstdint>

#include "ops/quantize_grouped.h"

namespace braid {

/// The rows of a block of columns (GroupedColumns): [first, first + count).
struct ColumnBlockRows {
  int64_t first = 0;
  int count = 0;  ///< 0: the block belongs to no expert
};

/// Of block `block`. An expert's blocks begin at or before it, those of the next one behind it.
__device__ inline ColumnBlockRows rows_of_block(const int32_t* offsets, int num_experts,
                                                int64_t block) {
  constexpr int64_t kBlock = GroupedColumns::kBlock;
  const auto begin_of = [&](int expert) {
    return GroupedColumns::begin(offsets[expert], expert) / kBlock;
  };
  int expert = 0;  // the last one whose blocks begin at `block` or before
  for (int end = num_experts; end - expert > 1;) {
    const int middle = (expert + end) / 2;
    (begin_of(middle) <= block ? expert : end) = middle;
  }
  const int64_t skipped = (block - begin_of(expert)) * kBlock;
  const int64_t rest = int64_t{offsets[expert + 1]} - offsets[expert] - skipped;
  return {.first = offsets[expert] + skipped,
          .count = static_cast<int>(rest < 0        ? 0
                                    : rest < kBlock ? rest
                                                    : kBlock)};
}

}  // namespace braid
