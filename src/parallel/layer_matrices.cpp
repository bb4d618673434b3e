#include "parallel/layer_matrices.h"

#include <string_view>

#include "base/errors.h"

namespace braid {
namespace {

/// Consecutive rows of a parameter on this rank.
struct Rows {
  int64_t here = 0;
  int64_t full = 0;  // of the matrix, over all ranks
};

/// How ranks share the rows and columns of a parameter's matrices.
struct MatrixSplit {
  std::string_view group;
  bool columns = false;  // otherwise rows
  int64_t ranks = 1;
};

MatrixSplit split_of(const Parameter& parameter, const WeightShard& place) {
  switch (parameter.split) {
    case TensorSplit::kRows:
    case TensorSplit::kHeads:
      return {.group = "tensor", .columns = false, .ranks = place.tensor.size};
    case TensorSplit::kColumns:
      return {.group = "tensor", .columns = true, .ranks = place.tensor.size};
    case TensorSplit::kExperts:
      return {.group = "expert.tensor", .columns = false, .ranks = place.experts.tensor};
    case TensorSplit::kExpertColumns:
      return {.group = "expert.tensor", .columns = true, .ranks = place.experts.tensor};
    default:
      return {};
  }
}

/// The matrices of a parameter, one behind the other.
std::vector<Rows> runs_of_rows(const Parameter& parameter, const ParameterShard& shard,
                               const WeightShard& place, int64_t num_experts) {
  const MatrixSplit split = split_of(parameter, place);
  const int64_t row_ranks = split.columns ? 1 : split.ranks;
  std::vector<Rows> runs;
  for (const HeadRows& head : parameter.heads) {
    check(head.heads % row_ranks == 0, "{}: {} tensor ranks hold copies of {} heads",
          parameter.name, row_ranks, head.heads);
    const int64_t full = head.heads * head.rows;
    runs.push_back({full / row_ranks, full});
  }
  if (!runs.empty()) {
    return runs;
  }
  const bool experts = parameter.domain == DomainKind::kExpert;
  const int64_t count = experts ? num_experts / place.experts.size : 1;
  const Rows each{shard.local_shape[0] / count, parameter.shape[0] / (experts ? num_experts : 1)};
  return std::vector<Rows>(static_cast<size_t>(count), each);
}

}  // namespace

bool is_muon_matrix(const Parameter& parameter) {
  return parameter.layer >= 0 && parameter.shape.rank() == 2 && parameter.weight_decay &&
         parameter.init == ParameterInit::kNormal && !parameter.vocabulary_rows &&
         !parameter.frozen && !parameter.balances;
}

std::vector<LayerMatrix> layer_matrices(const ParameterLayout& layout, const WeightShard& place,
                                        int64_t num_experts) {
  std::vector<LayerMatrix> matrices;
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    if (!layout.units[unit].is_muon) {
      continue;
    }
    for (const size_t index : layout.units[unit].slots) {
      const ParameterSlot& slot = layout.slots[index];
      const Parameter& parameter = layout.parameters[index];
      const ParameterShard& shard = layout.shards[index];
      const MatrixSplit split = split_of(parameter, place);
      const int64_t columns = shard.local_shape[1];
      const int64_t turns = parameter.gate_up_rows ? 2 : 1;  // matrices whose rows alternate
      int64_t begin = slot.begin;
      for (const Rows& rows : runs_of_rows(parameter, shard, place, num_experts)) {
        for (int64_t turn = 0; turn < turns; ++turn) {
          matrices.push_back({.parameter = index,
                              .unit = unit,
                              .begin = begin + turn * columns,
                              .rows = rows.here / turns,
                              .columns = columns,
                              .row_pitch = turns * columns,
                              .full_rows = rows.full / turns,
                              .full_columns = parameter.shape[1],
                              .group = split.ranks > 1 ? split.group : std::string_view()});
        }
        begin += rows.here * columns;
      }
      check(begin == slot.end, "{}: matrices of {} elements in a slot of {}", parameter.name,
            begin - slot.begin, slot.end - slot.begin);
    }
  }
  return matrices;
}

}  // namespace braid
