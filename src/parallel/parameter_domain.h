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

/// How the ranks share the parameters of one kind: who adds up their gradients, who holds shards
/// of which level, and over whom the gradient norm is summed. Every unit belongs to one domain.
/// Group names are those of Mesh::group.
struct ParameterDomain {
  DomainKind kind = DomainKind::kDense;
  ShardKind shard = ShardKind::kNone;
  /// Of gradients between ranks; kF32 or kBF16.
  DType reduce_dtype = DType::kF32;
  /// Of the weights that compute reads; none: that of the program. Programs in f64 ignore it.
  std::optional<DType> weight_dtype = std::nullopt;
  std::string_view gradient_group;  ///< ranks that compute gradients of the same elements
  std::string_view shard_group;     ///< those of them that hold one copy of the state in shards
  std::string_view replica_group;   ///< those of them that hold the same shard
  std::string_view norm_group;      ///< ranks that together own each element once
  int64_t num_shards = 1;           ///< in which ranks hold the state of a unit
};

/// The domains of a model, by DomainKind: dense parameters, and those of experts if it has any.
/// Shards of expert parameters are `options.expert_shard`; where one rank has all gradients of an
/// expert, its state is whole.
std::vector<ParameterDomain> parameter_domains(const Mesh& mesh, const ParallelOptions& options,
                                               bool has_experts);

/// Which shard `rank` holds, by domain.
std::vector<int64_t> shard_indices(const Mesh& mesh, int rank,
                                   std::span<const ParameterDomain> domains);

}  // namespace braid
