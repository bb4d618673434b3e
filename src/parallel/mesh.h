#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Sizes of the parallel dimensions. The number of ranks is the product of the first four. Ranks
/// are numbered with tensor fastest, then context, data, pipeline (Megatron's default
/// "tp-cp-ep-dp-pp").
struct MeshSizes {
  int tensor = 1;
  int context = 1;
  int data = 1;
  int pipeline = 1;
  int context_inner = 1;  ///< context ranks that exchange heads for sequence (all-to-all); the ring
                          ///< connects groups of this size
  int replicas = 1;       ///< copies of sharded state (HSDP) over the data * context ranks
  int kv_replicas = 1;    ///< tensor ranks that hold the same key/value heads
  /// Expert parallelism orders the ranks of a stage (tensor x context x data) differently, fastest
  /// first: expert tensor, expert, expert data. Neighbouring ranks then exchange tokens, and the
  /// ranks that share experts may span the tensor, context and data dimensions.
  int expert = 1;           ///< number of ranks over which experts are distributed
  int expert_tensor = 1;    ///< number of ranks over which each expert is split
  int expert_replicas = 1;  ///< copies of sharded state over the ranks that hold the same experts
  int expert_hosts = 1;     ///< hosts over which the experts are distributed, if ranks of different
                            ///< hosts exchange one copy of a token

  int num_ranks() const { return per_stage() * pipeline; }
  /// Ranks of a pipeline stage.
  int per_stage() const { return tensor * context * data; }
  /// Number of ranks that hold copies (or shards) of the same dense weights.
  int gradient() const { return data * context; }
  /// Number of ranks that hold copies (or shards) of the same experts.
  int expert_data() const { return per_stage() / (expert * expert_tensor); }

  friend bool operator==(const MeshSizes&, const MeshSizes&) = default;
};

/// Position of a rank in each dimension.
struct MeshPosition {
  int tensor = 0;
  int context = 0;
  int data = 0;
  int pipeline = 0;
};

/// Position of a rank within its stage, in the dimensions of expert parallelism.
struct ExpertPosition {
  int expert_tensor = 0;
  int expert = 0;
  int expert_data = 0;
};

/// Groups of the messages between stages.
inline constexpr std::string_view kForwardGroup = "pipeline.forward";
inline constexpr std::string_view kBackwardGroup = "pipeline.backward";

/// Maps ranks to groups. Stage graphs use the same group names. Ranks of a group are in ascending
/// order.
///    tensor, context, data   ranks that differ from this rank in that dimension only
///    context.inner           context ranks of one all-to-all; context.outer: those of one ring
///    gradient                data x context: ranks that compute gradients of the same weights
///    gradient.shard          ranks that hold the shards of one copy of the state
///    gradient.replica        ranks that hold the same shard (HSDP)
///    tensor.kv               tensor ranks that hold the same key/value heads
///    expert.exchange         ranks that together hold all experts and exchange rows
///    expert.host, expert.rail   of these: ranks of one host; one rank of each host
///    expert.tensor           ranks that hold parts of the same experts
///    expert.data             ranks that hold the same parts: they compute gradients of the same
///                            weights; expert.data.shard and expert.data.replica as for "gradient"
///    pipeline.forward, pipeline.backward   the stages of one pipeline, once per direction
///    embedding               first and last of these stages (tied embeddings)
///    model                   tensor x pipeline: one copy of the model
///    model.shard             tensor x pipeline x gradient.shard: one copy of sharded state
///    expert.model            expert x expert tensor x pipeline: one copy of all experts
///    expert.model.shard      expert.model x expert.data.shard: one copy of their sharded state
///    loss                    data x context x pipeline: ranks with different tokens or stages
///    world                   all ranks
class Mesh {
 public:
  /// Throws ConfigError that names the option if a size is below 1 or does not divide its
  /// dimension.
  explicit Mesh(const MeshSizes& sizes);

  const MeshSizes& sizes() const { return sizes_; }
  int num_ranks() const { return sizes_.num_ranks(); }
  MeshPosition position(int rank) const;
  int rank_at(const MeshPosition& position) const;
  ExpertPosition expert_position(int rank) const;

  /// Returns the group with that name that contains `rank`. Throws InternalError for an unknown
  /// name.
  Group group(std::string_view name, int rank) const;
  /// The first rank of that group, without listing it.
  int first_in(std::string_view name, int rank) const;
  /// Position of `rank` in that group.
  int index_in(std::string_view name, int rank) const;

 private:
  MeshSizes sizes_;
};

}  // namespace braid
