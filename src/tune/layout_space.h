#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "model/model_spec.h"
#include "parallel/pipeline_layout.h"
#include "parallel/schedule.h"
#include "sim/cluster.h"
#include "tune/layout.h"

namespace braid {

struct LayoutLimits {
  int64_t max_tensor = 0;   ///< 0: the devices of a node
  int64_t max_context = 0;  ///< 0: as many as leave a rank kLeastTokens of a sequence
  int64_t max_microbatch = 16;
  std::set<std::string, std::less<>> fixed = {};  ///< keys that keep the value of the configuration
};

/// A context rank with fewer tokens of a sequence computes less than it communicates.
inline constexpr int64_t kLeastTokens = 512;

struct LayoutSpace {
  std::vector<Layout> layouts;  ///< in the order of their dimensions
  int64_t num_refused = 0;      ///< combinations that no run could have, by the rules of the keys
};

/// The pipeline of a layout of `config`; balanced roughly, for there are many.
ScheduleOptions schedule_of(const RunConfig& config, const Layout& layout);
PipelineLayoutOptions pipeline_layout_options(const RunConfig& config, const ModelSpec& model,
                                              const Layout& layout);

/// All layouts of `config.parallel.ranks` ranks that the rules of the run file allow, bounded by
/// what makes sense: tensor ranks lie in a node (with sequence parallelism), context ranks have
/// kLeastTokens tokens, shards of a node have copies on the others or there is one copy. Other keys
/// are those of `config`. Throws ConfigError if a fixed key is no searched one.
LayoutSpace enumerate_layouts(const RunConfig& config, const ModelSpec& model,
                              const Cluster& cluster, const LayoutLimits& limits);

}  // namespace braid
