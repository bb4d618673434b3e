#include "model/parameter_shard.h"

#include <algorithm>

#include "base/errors.h"

namespace braid {
namespace {

IndexRange equal_part(int64_t size, const TensorShard& tensor) {
  const int64_t part = size / tensor.size;
  return {tensor.index * part, (tensor.index + 1) * part};
}

/// Query rows, key rows, value rows.
std::vector<IndexRange> head_rows(const ModelSpec& spec, const TensorShard& tensor) {
  const LocalSizes local = local_sizes(spec, tensor);
  const auto rows = [&](int64_t first_head, int64_t heads) {
    return IndexRange{first_head * spec.head_size, (first_head + heads) * spec.head_size};
  };
  const int64_t first_key = spec.heads + local.kv_begin;
  return {rows(tensor.index * local.heads, local.heads), rows(first_key, local.kv_heads),
          rows(first_key + spec.kv_heads, local.kv_heads)};
}

/// The rank's rows, as far as the full tensor has them.
IndexRange vocabulary_rows(const ModelSpec& spec, const TensorShard& tensor) {
  const LocalSizes local = local_sizes(spec, tensor);
  const int64_t full = spec.padded_vocabulary();
  return {std::min(local.vocabulary_begin, full),
          std::min(local.vocabulary_begin + local.vocabulary_rows, full)};
}

std::vector<IndexRange> ranges_of(const ModelSpec& spec, const Parameter& parameter,
                                  const TensorShard& tensor) {
  const int64_t rows = parameter.shape[0];
  switch (parameter.split) {
    case TensorSplit::kWhole:
    case TensorSplit::kNorm:
      return {{0, rows}};
    case TensorSplit::kRows:
      return {equal_part(rows, tensor)};
    case TensorSplit::kColumns:
      return {equal_part(parameter.shape[1], tensor)};
    case TensorSplit::kHeads:
      return head_rows(spec, tensor);
    case TensorSplit::kVocabulary:
      return {vocabulary_rows(spec, tensor)};
  }
  throw_internal_error("{} has no split", parameter.name);
}

/// Neighbours as one range: with one rank, query, key and value rows are all rows.
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

/// Says which elements of a local tensor are addends, and which this rank counts.
class GradientFacts {
 public:
  GradientFacts(const ModelSpec& spec, const TensorShard& tensor, ParameterShard& shard)
      : spec_(spec), tensor_(tensor), shard_(shard), elems_(shard.local_shape.num_elems()) {}

  void add(TensorSplit split) {
    switch (split) {
      case TensorSplit::kWhole:
        return count_on_first(tensor_.index, {0, elems_});
      case TensorSplit::kNorm:
        if (tensor_.splits_rows()) {
          shard_.partial_sums.push_back({{0, elems_}, "tensor"});
        }
        return count_on_first(tensor_.index, {0, elems_});
      case TensorSplit::kHeads:
        return add_heads();
      default:
        return count({0, elems_});
    }
  }

 private:
  void count(const IndexRange& elements) { shard_.counted.push_back(elements); }
  void count_on_first(int64_t member, const IndexRange& elements) {
    if (member == 0) {
      count(elements);
    }
  }

  /// Every sharer of a key/value head sees its own query heads only.
  void add_heads() {
    const LocalSizes local = local_sizes(spec_, tensor_);
    if (local.kv_sharers == 1) {
      return count({0, elems_});
    }
    const int64_t row_elems = elems_ / shard_.local_shape[0];
    const int64_t kv_begin = local.heads * spec_.head_size * row_elems;
    shard_.partial_sums.push_back({{kv_begin, elems_}, "tensor.kv"});
    count({0, local.kv_sharer == 0 ? elems_ : kv_begin});
  }

  const ModelSpec& spec_;
  const TensorShard& tensor_;
  ParameterShard& shard_;
  int64_t elems_;
};

}  // namespace

ParameterShard shard_parameter(const ModelSpec& spec, const Parameter& parameter,
                               const TensorShard& tensor) {
  ParameterShard shard;
  shard.axis = parameter.split == TensorSplit::kColumns ? 1 : 0;
  shard.ranges = joined(ranges_of(spec, parameter, tensor));
  shard.local_shape = parameter.shape;
  shard.local_shape[shard.axis] = parameter.split == TensorSplit::kVocabulary
                                      ? local_sizes(spec, tensor).vocabulary_rows
                                      : total_size(shard.ranges);
  GradientFacts(spec, tensor, shard).add(parameter.split);
  return shard;
}

Parameter local_parameter(const ModelSpec& spec, const Parameter& parameter,
                          const TensorShard& tensor) {
  Parameter local = parameter;
  local.shape = shard_parameter(spec, parameter, tensor).local_shape;
  return local;
}

std::vector<ElementBlock> element_blocks(const Shape& full_shape, const ParameterShard& shard) {
  const int64_t rows = shard.axis == 0 ? 1 : full_shape[0];
  const int64_t full_stride = full_shape.num_elems() / rows;
  const int64_t local_stride = shard.local_shape.num_elems() / rows;
  const int64_t inner = full_stride / full_shape[shard.axis];
  const IndexRange first = shard.ranges.empty() ? IndexRange() : shard.ranges.front();
  const int64_t run_elems = first.size() * inner;
  if (run_elems == full_stride) {
    return {{.full_begin = 0, .local_begin = 0, .num_runs = 1, .run_elems = rows * full_stride}};
  }
  if (rows > 1 && run_elems == local_stride) {
    return {{first.begin * inner, 0, rows, run_elems}};
  }
  std::vector<ElementBlock> blocks;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t local = row * local_stride;
    for (const IndexRange& range : shard.ranges) {
      if (range.size() > 0) {
        blocks.push_back({row * full_stride + range.begin * inner, local, 1, range.size() * inner});
        local += range.size() * inner;
      }
    }
  }
  return blocks;
}

}  // namespace braid
