#pragma once

// Keys of [overlap], each alone: those of the table of configuration keys, so that a new one is in.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/errors.h"
#include "config/fields.h"
#include "config/load.h"
#include "config/validate.h"
#include "plan/overlap_setup.h"

namespace braid {

/// Texts KEY=VALUE of [overlap].
using OverlapSettings = std::vector<std::string>;

inline OverlapConfig overlap_of(const OverlapSettings& settings) {
  std::vector<std::string> overrides;
  overrides.reserve(settings.size());
  for (const std::string& word : settings) {
    overrides.push_back("overlap." + word);
  }
  return parse_config("", "overlap", overrides).overlap;
}

/// What a key of [overlap] needs beside it. Keys that are not listed need nothing, or belong to
/// tp_comm_overlap.
inline const std::map<std::string_view, OverlapSettings>& companions() {
  static const OverlapSettings gather = {"overlap_param_gather=true"};
  static const OverlapSettings messages = {"overlap_p2p_comm=true"};
  static const std::map<std::string_view, OverlapSettings> list = {
      {"overlap_grad_reduce_delayed_wgrad_layers", {"overlap_grad_reduce=true"}},
      {"overlap_param_gather_with_optimizer_step", gather},
      {"align_param_gather", gather},
      {"param_gather_prefetch_units", gather},
      {"param_gather_fills_budget", gather},
      {"param_gather_whole_units", gather},
      {"overlap_p2p_comm_warmup_flush", messages},
      {"overlap_p2p_backward_on_comm_stream", messages},
      {"tp_comm_overlap_rs_dgrad", {"tp_comm_bulk_wgrad=false"}},
      {"overlap_p2p_with_transformer_layer_wgrad", {"overlap_p2p_wgrad_delayed_layer_number=2"}},
      {"wgrad_deferral_limit", {"defer_embedding_wgrad_compute=true"}}};
  return list;
}

/// Keys that these tests do not switch, and why.
inline bool is_left_out(std::string_view key) {
  return key == "mode" || key == "disable_passes" ||  // every test here sets them
         key == "cost" || key == "list_schedule" || key == "split_ops" ||  // need a cost model
         key == "tp_comm_overlap_sites" ||  // methods of products: tensor_overlap_test.cpp
         key == "tp_comm_overlap_min_rows" || key == "may_change_rounding";
}

/// Values of the key other than its default, without what needs a cost model
/// (list_schedule_test.cpp).
inline std::vector<std::string> other_values(const Field& field) {
  RunConfig defaults;
  const ValueRef value = field.value(defaults);
  if (bool* const* const flag = std::get_if<bool*>(&value)) {
    return {**flag ? "false" : "true"};
  }
  if (std::holds_alternative<int64_t*>(value)) {
    return {"2"};
  }
  if (field.name == "comm_sms") {
    return {"[\"data=2\", \"tensor=3\", \"expert=1\"]"};
  }
  std::vector<std::string> names;
  for (const std::string_view name : field.limits.allowed) {
    if (name != *std::get<std::string*>(value) && name != "hidden") {
      names.push_back(fmt::format("\"{}\"", name));
    }
  }
  return names;
}

/// The key alone, in each of its values, with what it needs.
inline std::vector<OverlapSettings> settings_of(const Field& field) {
  std::vector<OverlapSettings> list;
  for (const std::string& value : other_values(field)) {
    OverlapSettings settings = {"mode=manual"};
    const auto found = companions().find(field.name);
    if (found != companions().end()) {
      settings.insert(settings.end(), found->second.begin(), found->second.end());
    }
    if (field.name.starts_with("tp_comm")) {
      settings.insert(settings.end(), {"tp_comm_overlap=true", "tp_comm_overlap_min_rows=1"});
    }
    if (field.name != "tp_comm_overlap") {
      settings.push_back(fmt::format("{}={}", field.name, value));
    }
    list.push_back(std::move(settings));
  }
  return list;
}

inline std::vector<const Field*> overlap_keys() {
  std::vector<const Field*> list;
  for (const Field& field : config_fields()) {
    if (field.section == "overlap" && !is_left_out(field.name)) {
      list.push_back(&field);
    }
  }
  return list;
}

/// False where the configuration has no use for these settings.
inline bool is_possible(RunConfig config, const OverlapSettings& settings) {
  try {
    config.overlap = overlap_of(settings);
    validate(config);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

/// Each key alone, with each of its values, that the configuration can have.
inline std::vector<OverlapSettings> possible_settings(const RunConfig& config) {
  std::vector<OverlapSettings> list;
  for (const Field* const field : overlap_keys()) {
    for (OverlapSettings& settings : settings_of(*field)) {
      if (is_possible(config, settings)) {
        list.push_back(std::move(settings));
      }
    }
  }
  return list;
}

/// Whether losses with these settings may differ by rounding from those without overlap.
inline bool may_round_otherwise(const OverlapSettings& settings) {
  const bool has_other_microbatches = std::ranges::any_of(
      settings, [](const std::string& it) { return it.ends_with("=\"halves\""); });
  return has_other_microbatches || overlap_setup(overlap_of(settings)).context.may_change_rounding;
}

}  // namespace braid
