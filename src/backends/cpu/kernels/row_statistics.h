#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "ir/op_spec.h"
#include "ops/cross_entropy.h"

/// What ranks know of a row of logits whose columns they share.
namespace braid {

/// The reference that is subtracted before exp: 0 if all values are -infinity, since -infinity
/// minus itself is NaN.
template <class W>
W reference_of(W max) {
  return max == -std::numeric_limits<W>::infinity() ? W(0) : max;
}

/// Statistics [ranks * rows, 3] of cross_entropy_partial beside labels [rows].
struct StatisticsSizes {
  int64_t rows = 0;
  int64_t ranks = 0;

  explicit StatisticsSizes(const OpSpec& spec)
      : rows(spec.operands[1].shape[0]), ranks(spec.operands[0].shape[0] / rows) {}
};

/// The log-sum-exp of one row over all ranks, and the label's logit.
template <class W>
std::pair<W, double> merged_row(const StatisticsSizes& sizes, const W* stats, int64_t row) {
  const auto of_rank = [&](int64_t rank) {
    return stats + (rank * sizes.rows + row) * kCrossEntropyStats;
  };
  W max = of_rank(0)[0];
  for (int64_t rank = 1; rank < sizes.ranks; ++rank) {
    max = std::max(max, of_rank(rank)[0]);
  }
  const auto reference = static_cast<double>(reference_of(max));
  double sum = 0;
  double of_label = 0;
  for (int64_t rank = 0; rank < sizes.ranks; ++rank) {
    const W* const part = of_rank(rank);
    sum += static_cast<double>(part[1]) * std::exp(static_cast<double>(part[0]) - reference);
    of_label += static_cast<double>(part[2]);
  }
  return {static_cast<W>(static_cast<double>(max) + std::log(sum)), of_label};
}

}  // namespace braid
