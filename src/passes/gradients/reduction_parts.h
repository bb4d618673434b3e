#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/op_spec.h"

namespace braid {

/// Sums of fewer bytes gather the whole input. On GPUs this takes one rotation of copies instead of
/// two, and one step of a rotation takes as long as copying some megabytes (docs/simulator.md).
inline constexpr int64_t kGatheredSumBytes = int64_t{64} << 10;

/// A sum over the ranks of a group, or the largest elements, written as copies between ranks and a
/// local sum, on flat ranges:
///   all_to_all(x [n*k] -> received [n*k])  sum_blocks(received[0], ..., received[n-1] -> sum [k])
///   and for all_reduce  all_gather(sum [k] -> y [n*k])
/// or, for any k,
///   all_gather(x [k] -> received [n*k])  sum_blocks(received[0], ..., received[n-1] -> y [k])
/// The result has the same bits as the collective: blocks are added in group order in fp32 (f64 for
/// f64) and rounded once. all_reduce_max is as all_reduce, with largest_of_blocks.
struct ReductionParts {
  OpSpec exchange;
  OpSpec sum;
  std::optional<OpSpec> gather;  ///< none if `sum` writes y
  int64_t num_ranks = 0;         ///< n
  int64_t block_elems = 0;       ///< k
  int64_t first_elem = 0;        ///< where this sum begins in x and, for an all_reduce, in y

  /// Elements of x.
  int64_t num_elems() const { return exchange.operands.front().shape.num_elems(); }
  /// Elements of y.
  int64_t num_results() const { return (gather ? *gather : sum).operands.back().shape.num_elems(); }
};

/// The parts of a reduce_scatter, an all_reduce or an all_reduce_max in a group of `num_ranks`, in
/// order; their ranges are adjacent. One of all elements whose number is not a multiple of
/// `num_ranks` has two parts: first the elements that divide evenly, then the rest. Empty for all
/// other ops, for one rank, and for more than kMaxBlocks ranks.
std::vector<ReductionParts> reduction_parts(const OpSpec& spec, int64_t num_ranks);

}  // namespace braid
