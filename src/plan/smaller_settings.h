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
  std::variant<bool, int64_t, double, std::string> value;
};

/// Changes that are applied together.
using SettingChanges = std::vector<SettingChange>;

/// "memory.recompute = "norms", train.microbatch = 2"
std::string describe_changes(const SettingChanges& changes);

RunConfig with_changes(RunConfig config, const SettingChanges& changes);

/// Settings that may need less memory than `config`, cheapest in time first: single changes, then
/// combinations, up to all of them. Changes: no copy of the state on the host (checkpoint.async);
/// less room for rows of experts, where steps that lack it run again (moe.capacity); recompute by
/// policy; sharding of the optimizer state, gradients and parameters if there are data-parallel
/// ranks; smaller microbatches that divide the batch; activations on the host; and, last because a
/// smaller batch trains differently, fewer microbatches. At most kMaxSmallerSettings; other rules
/// may refuse some of them. `layers`: of the model. Requires: `config` is validated and resolved.
std::vector<SettingChanges> smaller_settings(const RunConfig& config, int64_t layers);

inline constexpr size_t kMaxSmallerSettings = 24;

/// The bytes that a configuration needs; nullopt if it does not fit or is not valid.
using FittingBytes = std::function<std::optional<int64_t>(const RunConfig& config)>;

struct FittingSetting {
  SettingChanges changes;
  int64_t needed_bytes = 0;
};

/// The first of `smaller_settings` that fits.
std::optional<FittingSetting> find_fitting_setting(const RunConfig& config, int64_t layers,
                                                   const FittingBytes& fitting_bytes);

}  // namespace braid
