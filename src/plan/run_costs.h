#pragma once

#include <memory>

#include "config/run_config.h"
#include "sim/cost_model.h"

namespace braid {

/// Returns `model` with the links of the run. Ranks of a CPU are threads of one process, which copy
/// and add on their own cores and communicate over the links of section [links]
/// (`make_linked_model`). Other devices use the links of their cluster.
std::unique_ptr<CostModel> with_links_of_run(std::unique_ptr<CostModel> model,
                                             const LinksConfig& links);

/// The cost model that overlap.cost names, with a device for every rank of the run; null if the key
/// is empty. Throws ConfigError, and DataError for a profile that cannot be read.
std::shared_ptr<const CostModel> overlap_cost_model(const RunConfig& config);

}  // namespace braid
