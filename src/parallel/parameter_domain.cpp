#include "parallel/parameter_domain.h"

namespace braid {
namespace {

/// How `copies` ranks with gradients of the same elements share them, in `replicas` groups.
struct Division {
  int copies = 1;
  int replicas = 1;
};

/// Fills in what depends on the shards of a domain. `whole` and `shard` are the groups that own
/// each element once if ranks hold all state of the domain, or shards.
void divide(ParameterDomain& domain, Division division, bool splits_shards, std::string_view whole,
            std::string_view shard) {
  if (domain.shard == ShardKind::kNone) {
    domain.norm_group = whole;
    return;
  }
  domain.num_shards = division.copies / division.replicas;
  domain.num_parts = splits_shards ? division.copies : domain.num_shards;
  domain.norm_group = domain.splits_shards() ? "world" : shard;
}

ParameterDomain dense_domain(const Mesh& mesh, const ParallelOptions& options) {
  ParameterDomain domain{.kind = DomainKind::kDense,
                         .shard = options.shard,
                         .reduce_dtype = options.reduce_dtype,
                         .gradient_group = "gradient",
                         .shard_group = "gradient.shard",
                         .replica_group = "gradient.replica",
                         .norm_group = {}};
  divide(domain, {mesh.sizes().gradient(), mesh.sizes().replicas}, options.shard_over_replicas,
         "model", "model.shard");
  return domain;
}

ParameterDomain expert_domain(const Mesh& mesh, const ParallelOptions& options) {
  const int copies = mesh.sizes().expert_data();
  ParameterDomain domain{.kind = DomainKind::kExpert,
                         .shard = copies == 1 ? ShardKind::kNone : options.expert_shard,
                         .reduce_dtype = options.reduce_dtype,
                         .gradient_group = "expert.data",
                         .shard_group = "expert.data.shard",
                         .replica_group = "expert.data.replica",
                         .norm_group = {}};
  divide(domain, {copies, mesh.sizes().expert_replicas}, options.shard_over_replicas,
         "expert.model", "expert.model.shard");
  return domain;
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
    const int64_t shard =
        domain.shard == ShardKind::kNone ? 0 : mesh.index_in(domain.shard_group, rank);
    indices.push_back(domain.splits_shards() ? shard * (domain.num_parts / domain.num_shards) +
                                                   mesh.index_in(domain.replica_group, rank)
                                             : shard);
  }
  return indices;
}

}  // namespace braid
