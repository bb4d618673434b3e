#pragma once

#include "comm/links.h"
#include "config/run_config.h"
#include "model/model_spec.h"
#include "parallel/mesh.h"
#include "parallel/parallel_options.h"

namespace braid {

/// Sizes of the mesh that section [parallel] asks for. `config` must be validated and resolved.
/// Throws ConfigError where the model cannot be split that way.
MeshSizes mesh_sizes(const RunConfig& config, const ModelSpec& model);

/// The rest of section [parallel]: stages, schedule, shards. Throws ConfigError naming rule, values
/// and nearest valid settings for a pipeline that does not exist.
ParallelOptions parallel_options(const RunConfig& config, const ModelSpec& model);

/// Section [links] in ns and bytes/s.
LinkOptions link_options(const LinksConfig& links);

}  // namespace braid
