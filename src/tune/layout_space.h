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
  int64_t max_context = 0;  ///< 0: a rank has kLeastTokens of a sequence or more
  int64_t max_microbatch = 16;
  std::set<std::string, std::less<>> fixed = {};  ///< keys that keep the value of the configuration
  std::set<std::string, std::less<>> varied = {};  ///< of `varied_keys`, those that are searched
};

/// Fewest tokens of a sequence per context rank. With fewer, a rank spends more time communicating
/// than computing.
inline constexpr int64_t kLeastTokens = 512;

struct LayoutSpace {
  std::vector<Layout> layouts;  ///< in the order of their dimensions
  int64_t num_refused = 0;      ///< combinations that the rules of the keys forbid
};

/// Whether published runs have layouts of this kind: one sequence per microbatch, powers of two, a
/// ring of context ranks, 1f1b on one stage and interleaved ones on more (1f1b if a stage has only
/// one part), and sharded state: the optimizer's, or everything without a pipeline.
bool is_usual(const Layout& layout);

/// The pipeline of a layout of `config`. Balanced roughly, because there are many layouts.
ScheduleOptions schedule_of(const RunConfig& config, const Layout& layout);
PipelineLayoutOptions pipeline_layout_options(const RunConfig& config, const ModelSpec& model,
                                              const Layout& layout);

/// All layouts of `config.parallel.ranks` ranks that the rules of the run file allow, within
/// practical bounds: tensor ranks are in one node (with sequence parallelism), and so are the ranks
/// that exchange rows of experts; context ranks have at least kLeastTokens tokens; sharded state
/// has either one copy, or shards inside a node with copies on the other nodes. Other keys are
/// those of `config`. Throws ConfigError if a fixed key is not a searched one, or a varied one not
/// of `varied_keys`.
LayoutSpace enumerate_layouts(const RunConfig& config, const ModelSpec& model,
                              const Cluster& cluster, const LayoutLimits& limits);

}  // namespace braid
