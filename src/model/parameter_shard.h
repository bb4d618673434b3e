#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/shape.h"
#include "model/expert_shard.h"
#include "model/parameters.h"
#include "model/tensor_shard.h"

namespace braid {

/// Indices [begin, end).
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

/// Elements of a main grad that are only one addend after the backward: the gradient is the sum
/// over the named group.
struct PartialSum {
  IndexRange elements;     ///< of the local tensor, row-major
  std::string_view group;  ///< "tensor" or "tensor.kv"

  friend bool operator==(const PartialSum&, const PartialSum&) = default;
};

/// A rank's place among those that split matrices.
struct WeightShard {
  TensorShard tensor;
  ExpertShard experts;
};

/// The part of a parameter that one rank holds: `ranges` along `axis` of the full tensor,
/// concatenated. Local rows after them are padding of the vocabulary: zeros, with zero gradient.
struct ParameterShard {
  int axis = 0;
  std::vector<IndexRange> ranges;
  IndexRange rows;  ///< of the full tensor, if `axis` is 1: of which the rank has the ranges
  Shape local_shape;
  std::vector<PartialSum> partial_sums;
  /// Elements of the local tensor that this rank counts in the gradient norm. Over the ranks of a
  /// tensor group, each element of the parameter is counted once, after partial sums are added up;
  /// those of a bias that balances are never counted.
  std::vector<IndexRange> counted;
};

/// `parameter` is one of `model_parameters(spec)`, in full. With one rank the shard is all of it.
ParameterShard shard_parameter(const ModelSpec& spec, const Parameter& parameter,
                               const WeightShard& place);

/// `parameter` with the shape of its shard, for the layout of one rank.
Parameter local_parameter(const ModelSpec& spec, const Parameter& parameter,
                          const WeightShard& place);

/// Consecutive elements of a shard from `local_begin` on, which are `num_runs` runs of `run_elems`
/// in the full tensor: the first at `full_begin`, each next one a row (elements per index of the
/// first dimension) later.
struct ElementBlock {
  int64_t full_begin = 0;
  int64_t local_begin = 0;
  int64_t num_runs = 1;
  int64_t run_elems = 0;

  int64_t num_elems() const { return num_runs * run_elems; }
  friend bool operator==(const ElementBlock&, const ElementBlock&) = default;
};

/// All elements that the shard has of the full tensor, in ascending local order and in as few
/// blocks as possible: consecutive rows are one block, and so are consecutive columns. The rest of
/// the local tensor is padding.
std::vector<ElementBlock> element_blocks(const Shape& full_shape, const ParameterShard& shard);

}  // namespace braid
