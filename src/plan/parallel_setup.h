#pragma once

#include "comm/links.h"
#include "config/run_config.h"
#include "model/model_spec.h"
#include "parallel/balance_stages.h"
#include "parallel/mesh.h"
#include "parallel/parallel_options.h"

namespace braid {

/// Sizes of the mesh that section [parallel] asks for. `config` must be validated and resolved.
/// Throws ConfigError where the model cannot be split that way.
MeshSizes mesh_sizes(const RunConfig& config, const ModelSpec& model);

/// The rest of section [parallel]: stages, schedule, shards. `mesh` is of `mesh_sizes`. Throws
/// ConfigError naming rule, values and nearest valid settings for a pipeline that does not exist.
ParallelOptions parallel_options(const RunConfig& config, const ModelSpec& model, const Mesh& mesh);

/// What stages are balanced by: multiplications of products and causal attention per token, in
/// ten-thousandths of the forward of a mean layer (capped at 100 layers for a part), and
/// activations in hundredths of those of a mean layer. From the model alone, so that a layout is
/// the same on each rank and every device; microbatch, tensor and context ranks make all parts
/// larger or smaller alike. What is looked up or memory-bound counts as nothing. What layers make
/// again does neither: recompute must change no bit, and the gradient norm adds up by rank.
PartCosts part_costs(const ModelSpec& model, int64_t sequence);

/// Section [links] in ns and bytes/s.
LinkOptions link_options(const LinksConfig& links);

}  // namespace braid
