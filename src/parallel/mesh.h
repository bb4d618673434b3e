#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Sizes of the parallel dimensions; their product is the number of ranks.
/// Rank order, fastest first: tensor, context, data, pipeline (Megatron's default
/// "tp-cp-ep-dp-pp").
struct MeshSizes {
  int tensor = 1;
  int context = 1;
  int data = 1;
  int pipeline = 1;
  int context_inner = 1;  ///< context ranks that exchange heads for sequence (all-to-all); the ring
                          ///< runs over groups of that many
  int replicas = 1;       ///< copies of sharded state (HSDP) among the data * context ranks
  int kv_replicas = 1;    ///< tensor ranks that hold the same key/value heads
  /// Experts see the ranks of a stage (tensor x context x data) in another order, fastest first:
  /// expert tensor, expert, expert data. So neighbours exchange tokens, and the ranks that share
  /// experts may lie across tensor, context and data ranks.
  int expert = 1;           ///< ranks that each hold other experts
  int expert_tensor = 1;    ///< ranks that each hold a part of the same experts
  int expert_replicas = 1;  ///< copies of sharded state among the ranks that hold the same experts

  int num_ranks() const { return per_stage() * pipeline; }
  /// Ranks of a pipeline stage.
  int per_stage() const { return tensor * context * data; }
  /// Ranks that hold copies (or shards) of the same dense weights.
  int gradient() const { return data * context; }
  /// Ranks that hold copies (or shards) of the same experts.
  int expert_data() const { return per_stage() / (expert * expert_tensor); }

  friend bool operator==(const MeshSizes&, const MeshSizes&) = default;
};

/// A rank's place in each dimension.
struct MeshPosition {
  int tensor = 0;
  int context = 0;
  int data = 0;
  int pipeline = 0;
};

/// A rank's place in its stage as experts see it.
struct ExpertPosition {
  int expert_tensor = 0;
  int expert = 0;
  int expert_data = 0;
};

/// Ranks and their groups. Groups have names, which stage graphs use too; ranks stand in each in
/// ascending order.
///   tensor, context, data   the ranks that differ from this one in that dimension only
///   context.inner           context ranks of one all-to-all; context.outer: those of one ring
///   gradient                data x context: they compute gradients of the same weights
///   gradient.shard          those of one copy of the state, which they hold in shards;
///   gradient.replica        those that hold the same shard (HSDP)
///   tensor.kv               tensor ranks that hold the same key/value heads
///   expert                  ranks that hold the other experts, and send each other tokens
///   expert.tensor           those that hold parts of the same experts
///   expert.data             those that hold the same parts: they compute gradients of the same
///                           weights; expert.data.shard and expert.data.replica as for "gradient"
///   pipeline.forward, pipeline.backward   the stages of one pipeline, once per direction
///   embedding               first and last of these stages (tied embeddings)
///   model                   tensor x pipeline: one copy of the model
///   model.shard             tensor x pipeline x gradient.shard: one copy of sharded state
///   expert.model            expert x expert tensor x pipeline: one copy of all experts
///   expert.model.shard      these x expert.data.shard: one copy of their sharded state
///   loss                    data x context x pipeline: all that see other tokens or other stages
///   world                   all ranks
class Mesh {
 public:
  /// Throws ConfigError naming the option of a size below 1 or of one that does not divide its
  /// dimension.
  explicit Mesh(const MeshSizes& sizes);

  const MeshSizes& sizes() const { return sizes_; }
  int num_ranks() const { return sizes_.num_ranks(); }
  MeshPosition position(int rank) const;
  int rank_at(const MeshPosition& position) const;
  ExpertPosition expert_position(int rank) const;

  /// The group of that name that `rank` is in. Throws InternalError for a name that is not above.
  Group group(std::string_view name, int rank) const;
  /// Place of `rank` in that group.
  int index_in(std::string_view name, int rank) const;

 private:
  MeshSizes sizes_;
};

}  // namespace braid
