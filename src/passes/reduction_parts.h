#pragma once

#include <cstdint>
#include <optional>

#include "ir/op_spec.h"

namespace braid {

/// A sum over the ranks of a group as copies and a sum on each rank, on flat ranges:
///   all_to_all(x [n*k] -> received [n*k])  sum_blocks(received[0], ..., received[n-1] -> sum [k])
///   and for all_reduce  all_gather(sum [k] -> y [n*k])
/// The same bits: blocks are added in group order, in fp32 (f64 for f64), and rounded once.
struct ReductionParts {
  OpSpec exchange;
  OpSpec sum;
  std::optional<OpSpec> gather;  ///< none in reduce_scatter, where `sum` writes y
  int64_t num_ranks = 0;         ///< n
  int64_t block_elems = 0;       ///< k
};

/// Of a reduce_scatter or an all_reduce in a group of `num_ranks`; nullopt for all other ops, where
/// there is one rank or more than kMaxBlocks, and where ranks would have different shares.
std::optional<ReductionParts> reduction_parts(const OpSpec& spec, int64_t num_ranks);

}  // namespace braid
