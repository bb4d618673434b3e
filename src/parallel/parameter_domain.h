#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "model/parameters.h"
#include "parallel/mesh.h"
#include "parallel/parallel_options.h"

namespace braid {

/// How ranks share the parameters of one kind: which ranks sum their gradients, which ranks hold
/// shards of what, and over which ranks the gradient norm is summed. Every unit belongs to one
/// domain. Group names are those of Mesh::group.
struct ParameterDomain {
  DomainKind kind = DomainKind::kDense;
  ShardKind shard = ShardKind::kNone;
  /// Dtype of gradient reductions; kF32 or kBF16.
  DType reduce_dtype = DType::kF32;
  /// Dtype of the weights that compute reads; empty: that of the program. Programs in f64 ignore
  /// it.
  std::optional<DType> weight_dtype = std::nullopt;
  std::string_view gradient_group;  ///< ranks that compute gradients of the same elements
  std::string_view shard_group;    ///< ranks of the gradient group that hold the shards of one copy
                                   ///< of the state
  std::string_view replica_group;  ///< ranks of the gradient group that hold the same shard
  std::string_view norm_group;     ///< ranks that together own each element exactly once
  int64_t num_shards = 1;          ///< parts of a unit that the ranks of a shard group hold
  int64_t num_parts = 1;  ///< parts of a unit that ranks update: num_shards, or a multiple if the
                          ///< ranks of a replica group share the update of their shard

  /// True if each rank updates only a part of its shard.
  bool splits_shards() const { return num_parts > num_shards; }
};

/// The domains of a model, by DomainKind: dense parameters, and expert parameters if the model has
/// any. Expert parameters are sharded as `options.expert_shard` says. If one rank has all gradients
/// of an expert, its state is not sharded.
std::vector<ParameterDomain> parameter_domains(const Mesh& mesh, const ParallelOptions& options,
                                               bool has_experts);

/// Index of the part that `rank` updates, by domain: that of its shard, or with parts of shards
/// index of the shard * parts of a shard + position in the replica group.
std::vector<int64_t> shard_indices(const Mesh& mesh, int rank,
                                   std::span<const ParameterDomain> domains);

}  // namespace braid
