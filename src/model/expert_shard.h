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
  /// Hosts of these ranks, an equal number of them on each in a row. Above 1, rows are exchanged in
  /// two stages: each host gets one copy of a token (ops/host_slots.h), whose rows are then
  /// exchanged between its ranks, from each other's memory.
  int64_t hosts = 1;

  int64_t num_ranks() const { return size * tensor; }
  bool is_split() const { return num_ranks() > 1; }
  bool over_hosts() const { return hosts > 1; }
  int64_t host() const { return index / (size / hosts); }
};

/// The group whose ranks exchange rows of experts; with ExpertShard::hosts those of them on a host,
/// and one of each host.
inline constexpr std::string_view kExpertExchangeGroup = "expert.exchange";
inline constexpr std::string_view kExpertHostGroup = "expert.host";
inline constexpr std::string_view kExpertRailGroup = "expert.rail";

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

/// With ExpertShard::hosts: what a rank sends and has for the other stage.
struct HostRoom {
  int64_t block_rows = 1;      ///< slots for the tokens that it sends to a host
  int64_t expected_slots = 1;  ///< slots that have a token, of all hosts, with equal loads
  int64_t rows = 1;            ///< rows of experts of the tokens that came to it
  int64_t expected_rows = 1;   ///< the same with equal loads
};

/// Blocks have slots for `capacity` times the tokens that have an expert on a given host, if all
/// choices are equally likely; and there is room for `capacity` times the rows of equal loads.
/// Without a capacity all fit.
HostRoom host_room(const ModelSpec& spec, const ExpertShard& experts, int64_t tokens);

/// The share of tokens that have at least one expert among the first 1 / `hosts` of the experts, if
/// a token has a random choice of groups (RouterSpec::kept_groups), and of experts in these.
double share_of_host(const ModelSpec& spec, int64_t hosts);

/// The least ExpertShard::capacity with room for all rows that can come.
double full_capacity(const ModelSpec& spec, const ExpertShard& experts);

/// Whether more rows can come than a rank has room for.
bool may_overflow(const ModelSpec& spec, const ExpertShard& experts);

/// Throws ConfigError naming the rule, the values and the nearest that fits: ranks must divide the
/// experts, and expert tensor ranks the features of an expert; hosts must divide the ranks.
void check_expert_parallel(const ModelSpec& spec, const ExpertShard& experts);

}  // namespace braid
