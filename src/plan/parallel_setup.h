#pragma once

#include "comm/links.h"
#include "config/run_config.h"
#include "model/model_spec.h"
#include "parallel/balance_stages.h"
#include "parallel/mesh.h"
#include "parallel/parallel_options.h"

namespace braid {

/// Sizes of the mesh that section [parallel] asks for. Requires: `config` is validated and
/// resolved. `expert_hosts`: ExchangeSetup::hosts. Throws ConfigError if the model cannot be split
/// that way.
MeshSizes mesh_sizes(const RunConfig& config, const ModelSpec& model, int64_t expert_hosts);

/// The rest of section [parallel]: stages, schedule, shards. `mesh` has the sizes that `mesh_sizes`
/// returns. Throws ConfigError naming the rule, the values and the nearest valid settings if the
/// pipeline is impossible.
ParallelOptions parallel_options(const RunConfig& config, const ModelSpec& model, const Mesh& mesh);

/// Costs by which stages are balanced. Compute: multiplications per token of matrix products and
/// causal attention, in ten-thousandths of the forward of a mean layer (capped at 100 layers per
/// part). Memory: activations in hundredths of those of a mean layer. The costs depend on the model
/// alone, so the layout is the same on each rank and device; microbatch, tensor ranks and context
/// ranks scale all parts alike. Lookups and memory-bound ops count as 0. Recomputed work does not
/// count either: recompute must not change any bit, and the gradient norm is summed by rank.
PartCosts part_costs(const ModelSpec& model, int64_t sequence);

/// Section [links] converted to ns and bytes/s.
LinkOptions link_options(const LinksConfig& links);

}  // namespace braid
