#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/run_config.h"

namespace braid {

/// A key of the run file with another value.
struct SettingChange {
  std::string_view section;
  std::string_view name;
  std::variant<int64_t, std::string> value;
};

/// Changes that are made together.
using SettingChanges = std::vector<SettingChange>;

/// "memory.recompute = "norms", train.microbatch = 2"
std::string describe_changes(const SettingChanges& changes);

RunConfig with_changes(RunConfig config, const SettingChanges& changes);

/// Settings that may need less memory than `config`, a validated and resolved one, with what costs
/// least time first: single changes, then several together, up to all. Recompute by policy, shards
/// of the optimizer state, gradients and parameters where data-parallel ranks can share them,
/// smaller microbatches that divide the batch, activations on the host, and fewer microbatches
/// (a smaller batch trains differently, so that comes last). At most kMaxSmallerSettings, some of
/// which other rules may refuse. `layers` of the model.
std::vector<SettingChanges> smaller_settings(const RunConfig& config, int64_t layers);

inline constexpr size_t kMaxSmallerSettings = 24;

/// What a configuration needs if it fits; nullopt if it does not, or is not valid.
using FittingBytes = std::function<std::optional<int64_t>(const RunConfig& config)>;

struct FittingSetting {
  SettingChanges changes;
  int64_t needed_bytes = 0;
};

/// The first of `smaller_settings` that fits.
std::optional<FittingSetting> find_fitting_setting(const RunConfig& config, int64_t layers,
                                                   const FittingBytes& fitting_bytes);

}  // namespace braid
