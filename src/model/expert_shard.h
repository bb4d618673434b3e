#pragma once

#include <cstdint>

#include "model/model_spec.h"

namespace braid {

/// One rank's place among the ranks that hold different experts: an equal run of the experts each
/// (expert parallelism), of which `tensor` neighbours split every matrix (expert tensor
/// parallelism). Sources: Lepikhin et al., GShard, 2020; Liu et al., MoE parallel folding, 2025.
struct ExpertShard {
  int64_t size = 1;          ///< ranks with different experts
  int64_t index = 0;         ///< this rank's
  int64_t tensor = 1;        ///< ranks that split an expert
  int64_t tensor_index = 0;  ///< this rank's
  /// Rows of experts for which a rank has room, as a multiple of those that it has with equal
  /// loads; 0: for all that can come.
  double capacity = 0.0;
  bool drops = false;  ///< rows without room, instead of making the step invalid
  /// Rows are exchanged in blocks of fixed size (ops/row_blocks.h), instead of from each other's
  /// memory.
  bool blocks = false;

  int64_t num_ranks() const { return size * tensor; }
  bool is_split() const { return num_ranks() > 1; }
};

/// The group whose ranks exchange rows of experts.
inline constexpr std::string_view kExpertExchangeGroup = "expert.exchange";

/// The rows that an expert takes of a rank's tokens in a microbatch: with
/// RouterSpec::expert_capacity, ceil(tokens * experts_per_token / experts * expert_capacity), but 1
/// at least; and one of each token at most. As Megatron-LM's get_capacity.
int64_t rows_of_expert(const ModelSpec& spec, int64_t tokens);

/// Rows for which each rank has room if ranks have `tokens` tokens each. With blocks, a whole
/// number for each rank of the group.
int64_t expert_room(const ModelSpec& spec, const ExpertShard& experts, int64_t tokens);

/// With ExpertShard::blocks: the rows for which a block of two ranks has room, an equal share of
/// the room; otherwise 0.
int64_t rows_of_block(const ModelSpec& spec, const ExpertShard& experts, int64_t tokens);

/// The least ExpertShard::capacity with room for all rows that can come.
double full_capacity(const ModelSpec& spec, const ExpertShard& experts);

/// Whether more rows can come than a rank has room for.
bool may_overflow(const ModelSpec& spec, const ExpertShard& experts);

/// Throws ConfigError naming the rule, the values and the nearest that fits: ranks must divide the
/// experts, and expert tensor ranks the features of an expert.
void check_expert_parallel(const ModelSpec& spec, const ExpertShard& experts);

}  // namespace braid
