#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/op_spec.h"

namespace braid {

/// Sums of fewer bytes are gathered whole: on GPUs that is one rotation of copies instead of two,
/// and a step of a rotation takes as long as some megabytes (docs/simulator.md).
inline constexpr int64_t kGatheredSumBytes = int64_t{64} << 10;

/// A sum over the ranks of a group as copies and a sum on each rank, on flat ranges:
///   all_to_all(x [n*k] -> received [n*k])  sum_blocks(received[0], ..., received[n-1] -> sum [k])
///   and for all_reduce  all_gather(sum [k] -> y [n*k])
/// or, of any k,
///   all_gather(x [k] -> received [n*k])  sum_blocks(received[0], ..., received[n-1] -> y [k])
/// The same bits: blocks are added in group order, in fp32 (f64 for f64), and rounded once.
struct ReductionParts {
  OpSpec exchange;
  OpSpec sum;
  std::optional<OpSpec> gather;  ///< none where `sum` writes y
  int64_t num_ranks = 0;         ///< n
  int64_t block_elems = 0;       ///< k
  int64_t first_elem = 0;        ///< of x, and in an all_reduce of y: where this sum begins

  /// Elements of x.
  int64_t num_elems() const { return exchange.operands.front().shape.num_elems(); }
  /// Elements of y.
  int64_t num_results() const { return (gather ? *gather : sum).operands.back().shape.num_elems(); }
};

/// What a reduce_scatter or an all_reduce in a group of `num_ranks` is made of, one after the other
/// and next to each other: of an all_reduce in which ranks would have different shares the many
/// elements that come out even, then the few that are left. Empty for all other ops, and where
/// there is one rank or more than kMaxBlocks.
std::vector<ReductionParts> reduction_parts(const OpSpec& spec, int64_t num_ranks);

}  // namespace braid
