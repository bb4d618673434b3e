#include "parallel/parameter_domain.h"

namespace braid {
namespace {

ParameterDomain dense_domain(const Mesh& mesh, const ParallelOptions& options) {
  const bool sharded = options.shard != ShardKind::kNone;
  return {.kind = DomainKind::kDense,
          .shard = options.shard,
          .reduce_dtype = options.reduce_dtype,
          .gradient_group = "gradient",
          .shard_group = "gradient.shard",
          .replica_group = "gradient.replica",
          .norm_group = sharded ? "model.shard" : "model",
          .num_shards = sharded ? mesh.sizes().gradient() / mesh.sizes().replicas : 1};
}

ParameterDomain expert_domain(const Mesh& mesh, const ParallelOptions& options) {
  const int copies = mesh.sizes().expert_data();
  const ShardKind shard = copies == 1 ? ShardKind::kNone : options.expert_shard;
  const bool sharded = shard != ShardKind::kNone;
  return {.kind = DomainKind::kExpert,
          .shard = shard,
          .reduce_dtype = options.reduce_dtype,
          .gradient_group = "expert.data",
          .shard_group = "expert.data.shard",
          .replica_group = "expert.data.replica",
          .norm_group = sharded ? "expert.model.shard" : "expert.model",
          .num_shards = sharded ? copies / mesh.sizes().expert_replicas : 1};
}

}  // namespace

std::vector<ParameterDomain> parameter_domains(const Mesh& mesh, const ParallelOptions& options,
                                               bool has_experts) {
  std::vector<ParameterDomain> domains{dense_domain(mesh, options)};
  if (has_experts) {
    domains.push_back(expert_domain(mesh, options));
  }
  return domains;
}

std::vector<int64_t> shard_indices(const Mesh& mesh, int rank,
                                   std::span<const ParameterDomain> domains) {
  std::vector<int64_t> indices;
  for (const ParameterDomain& domain : domains) {
    indices.push_back(domain.shard == ShardKind::kNone ? 0
                                                       : mesh.index_in(domain.shard_group, rank));
  }
  return indices;
}

}  // namespace braid
