#pragma once

#include "config/run_config.h"
#include "model/model_spec.h"
#include "parallel/optimizer_options.h"
#include "parallel/parallel_options.h"

namespace braid {

OptimizerOptions optimizer_options(const RunConfig& config);

/// The groups of optimizer.no_decay and optimizer.rates. Throws ConfigError for an entry that
/// cannot be read or fits no parameter of the model.
ParameterGroups parameter_groups(const OptimizerConfig& optimizer, const ModelSpec& model);

/// Whether Muon updates the matrices of layers. Throws ConfigError where it cannot: for adapters,
/// and if tensor ranks hold copies of heads.
bool uses_muon(const RunConfig& config, const ModelSpec& model);

}  // namespace braid
