#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"

namespace braid {

/// Refuses configurations that cannot run. Checks every key against its own limits again (a config
/// may come from code), rules across keys, and layouts that this build does not support yet. Needs
/// no device, no data and no model preset; src/model checks sizes that come from a preset. Throws
/// ConfigError naming option, value, limit and the nearest valid setting.
void validate(const RunConfig& config);

/// The same run with every "0 or empty = derived" number filled in: parallel.data, data.seed,
/// optimizer.decay_steps of a cosine schedule, checkpoint.folder, runtime.fuse_swiglu; and a warmup
/// no longer than the run, and a wsd decay no longer than what is left of it. The trainer prints,
/// saves and uses this configuration. Requires a validated config.
RunConfig resolved(RunConfig config);

/// A line for people for each of warmup and decay that `resolved` shortens.
std::vector<std::string> shortened_schedule(const RunConfig& config);

/// Sequences of one microbatch as executed: train.microbatch, or half of that if
/// overlap.pair_forward_backward = "halves". Requires a validated config.
int64_t microbatch_sequences(const RunConfig& config);

/// Microbatches that one rank runs per step: global_batch / (sequences of one * data-parallel
/// ranks). Requires a validated config.
int64_t num_microbatches(const RunConfig& config);

/// Whether the run writes checkpoints while it trains, from copies of its state in host memory.
bool copies_state(const RunConfig& config);

/// What runtime.fuse_swiglu says, or "auto" means.
bool fuses_swiglu(const RunConfig& config);

/// Whether section [links] asks for any link.
bool emulates_links(const LinksConfig& links);

/// Shares of training, validation and test data of a split such as "969,30,1", scaled to sum 1.
/// Throws ConfigError unless it is three comma-separated numbers >= 0, the first one > 0.
std::array<double, 3> parse_split(std::string_view split);

}  // namespace braid
