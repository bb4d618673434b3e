#include "model/parameter_shard.h"

#include <algorithm>

#include "base/errors.h"

namespace braid {
namespace {

IndexRange equal_part(int64_t size, int64_t parts, int64_t index) {
  return {index * (size / parts), (index + 1) * (size / parts)};
}

/// The heads of a run that a rank holds.
struct HeadShare {
  int64_t first = 0;
  int64_t heads = 1;
  bool is_shared = false;  ///< with neighbours
  bool is_counted = true;  ///< by this rank
};

HeadShare share_of(int64_t heads, const TensorShard& tensor) {
  if (tensor.size <= heads) {
    return {.first = tensor.index * heads / tensor.size, .heads = heads / tensor.size};
  }
  return {.first = tensor.index * heads / tensor.size,
          .is_shared = true,
          .is_counted = tensor.index % (tensor.size / heads) == 0};
}

std::vector<IndexRange> head_rows(const Parameter& parameter, const TensorShard& tensor) {
  std::vector<IndexRange> ranges;
  int64_t begin = 0;
  for (const HeadRows& run : parameter.heads) {
    const HeadShare share = share_of(run.heads, tensor);
    const int64_t first = begin + share.first * run.rows;
    ranges.push_back({first, first + share.heads * run.rows});
    begin += run.heads * run.rows;
  }
  check(begin == parameter.shape[0], "{}: {} rows of heads, not {}", parameter.name, begin,
        parameter.shape[0]);
  return ranges;
}

/// The rank's rows that exist in the full tensor.
IndexRange vocabulary_rows(const ModelSpec& spec, const TensorShard& tensor) {
  const LocalVocabulary local = local_vocabulary(spec, tensor);
  const int64_t full = spec.padded_vocabulary();
  return {std::min(local.begin, full), std::min(local.begin + local.rows, full)};
}

/// The rows of the rank's experts.
IndexRange expert_rows(const Parameter& parameter, const ExpertShard& experts) {
  return equal_part(parameter.shape[0], experts.size, experts.index);
}

/// The rank's rows of each of its experts.
std::vector<IndexRange> rows_of_experts(const ModelSpec& spec, const Parameter& parameter,
                                        const ExpertShard& experts) {
  const int64_t per_expert = parameter.shape[0] / spec.experts;
  const IndexRange part = equal_part(per_expert, experts.tensor, experts.tensor_index);
  const IndexRange all = expert_rows(parameter, experts);
  std::vector<IndexRange> ranges;
  for (int64_t begin = all.begin; begin < all.end; begin += per_expert) {
    ranges.push_back({begin + part.begin, begin + part.end});
  }
  return ranges;
}

std::vector<IndexRange> ranges_of(const ModelSpec& spec, const Parameter& parameter,
                                  const WeightShard& place) {
  const TensorShard& tensor = place.tensor;
  const int64_t rows = parameter.shape[0];
  switch (parameter.split) {
    case TensorSplit::kWhole:
    case TensorSplit::kNorm:
    case TensorSplit::kPartialSum:
      return {{0, rows}};
    case TensorSplit::kExperts:
      return rows_of_experts(spec, parameter, place.experts);
    case TensorSplit::kExpertColumns:
      return {equal_part(parameter.shape[1], place.experts.tensor, place.experts.tensor_index)};
    case TensorSplit::kRows:
      return {equal_part(rows, tensor.size, tensor.index)};
    case TensorSplit::kColumns:
      return {equal_part(parameter.shape[1], tensor.size, tensor.index)};
    case TensorSplit::kHeads:
      return head_rows(parameter, tensor);
    case TensorSplit::kVocabulary:
      return {vocabulary_rows(spec, tensor)};
  }
  throw_internal_error("{} has no split", parameter.name);
}

/// Merges adjacent ranges: with one rank, query, key and value rows are all rows.
std::vector<IndexRange> joined(const std::vector<IndexRange>& ranges) {
  std::vector<IndexRange> list;
  for (const IndexRange& range : ranges) {
    if (!list.empty() && list.back().end == range.begin) {
      list.back().end = range.end;
    } else {
      list.push_back(range);
    }
  }
  return list;
}

int64_t total_size(const std::vector<IndexRange>& ranges) {
  int64_t total = 0;
  for (const IndexRange& range : ranges) {
    total += range.size();
  }
  return total;
}

/// Determines which elements of a local tensor are addends, and which this rank counts.
class GradientFacts {
 public:
  GradientFacts(const Parameter& parameter, const TensorShard& tensor, ParameterShard& shard)
      : parameter_(parameter),
        tensor_(tensor),
        shard_(shard),
        elems_(shard.local_shape.num_elems()) {}

  void add() {
    switch (parameter_.split) {
      case TensorSplit::kWhole:
        return count_on_first(tensor_.index, {0, elems_});
      case TensorSplit::kNorm:
        if (tensor_.splits_rows()) {
          add_partial_sum();
        }
        return count_on_first(tensor_.index, {0, elems_});
      case TensorSplit::kPartialSum:
        if (tensor_.is_split()) {
          add_partial_sum();
        }
        return count_on_first(tensor_.index, {0, elems_});
      case TensorSplit::kHeads:
        return add_heads();
      default:
        return count({0, elems_});
    }
  }

 private:
  void add_partial_sum() { shard_.partial_sums.push_back({{0, elems_}, "tensor"}); }
  void count(const IndexRange& elements) {
    if (!parameter_.balances) {
      shard_.counted.push_back(elements);
    }
  }
  void count_on_first(int64_t member, const IndexRange& elements) {
    if (member == 0) {
      count(elements);
    }
  }

  /// Each rank that shares a head has an addend; one of them counts it.
  void add_heads() {
    const int64_t row_elems = elems_ / shard_.local_shape[0];
    std::vector<IndexRange> shared;
    std::vector<IndexRange> counted;
    int64_t begin = 0;
    for (const HeadRows& run : parameter_.heads) {
      const HeadShare share = share_of(run.heads, tensor_);
      const IndexRange elements{begin, begin + share.heads * run.rows * row_elems};
      if (share.is_shared) {
        shared.push_back(elements);
      }
      if (share.is_counted) {
        counted.push_back(elements);
      }
      begin = elements.end;
    }
    for (const IndexRange& elements : joined(shared)) {
      shard_.partial_sums.push_back({elements, "tensor.kv"});
    }
    shard_.counted = joined(counted);
  }

  const Parameter& parameter_;
  const TensorShard& tensor_;
  ParameterShard& shard_;
  int64_t elems_;
};

}  // namespace

ParameterShard shard_parameter(const ModelSpec& spec, const Parameter& parameter,
                               const WeightShard& place) {
  const TensorSplit split = parameter.split;
  ParameterShard shard;
  shard.local_shape = parameter.shape;
  shard.ranges = joined(ranges_of(spec, parameter, place));
  if (split == TensorSplit::kColumns || split == TensorSplit::kExpertColumns) {
    shard.axis = 1;
    shard.rows = split == TensorSplit::kColumns ? IndexRange{0, parameter.shape[0]}
                                                : expert_rows(parameter, place.experts);
    shard.local_shape[0] = shard.rows.size();
  }
  shard.local_shape[shard.axis] = split == TensorSplit::kVocabulary
                                      ? local_vocabulary(spec, place.tensor).rows
                                      : total_size(shard.ranges);
  GradientFacts(parameter, place.tensor, shard).add();
  return shard;
}

Parameter local_parameter(const ModelSpec& spec, const Parameter& parameter,
                          const WeightShard& place) {
  Parameter local = parameter;
  local.shape = shard_parameter(spec, parameter, place).local_shape;
  return local;
}

std::vector<ElementBlock> element_blocks(const Shape& full_shape, const ParameterShard& shard) {
  const IndexRange all = shard.axis == 0 ? IndexRange{0, 1} : shard.rows;
  const int64_t rows = all.size();
  const int64_t full_stride = full_shape.num_elems() / (shard.axis == 0 ? 1 : full_shape[0]);
  const int64_t local_stride = shard.local_shape.num_elems() / rows;
  const int64_t full_begin = all.begin * full_stride;
  const int64_t inner = full_stride / full_shape[shard.axis];
  const IndexRange first = shard.ranges.empty() ? IndexRange() : shard.ranges.front();
  const int64_t run_elems = first.size() * inner;
  if (run_elems == full_stride) {
    return {{.full_begin = full_begin,
             .local_begin = 0,
             .num_runs = 1,
             .run_elems = rows * full_stride}};
  }
  if (rows > 1 && run_elems == local_stride) {
    return {{full_begin + first.begin * inner, 0, rows, run_elems}};
  }
  std::vector<ElementBlock> blocks;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t local = row * local_stride;
    for (const IndexRange& range : shard.ranges) {
      if (range.size() > 0) {
        blocks.push_back(
            {full_begin + row * full_stride + range.begin * inner, local, 1, range.size() * inner});
        local += range.size() * inner;
      }
    }
  }
  return blocks;
}

}  // namespace braid
