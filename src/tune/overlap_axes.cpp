#include "tune/overlap_axes.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "config/choices.h"
#include "config/fields.h"
#include "config/overlap_defaults.h"
#include "config/tensor_sites.h"
#include "config/value.h"
#include "passes/pipeline.h"
#include "passes/schedule/schedule_step.h"
#include "passes/tensor/tensor_axes.h"

namespace braid {
namespace {

std::string method_of(std::string_view site, const OverlapConfig& overlap) {
  for (const TensorSiteChoice& choice : tensor_site_choices(overlap)) {
    if (choice.site == site) {
      const std::string name(overlap_method_name(choice.method));
      return choice.method == OverlapMethod::kChunked ? fmt::format("{}:{}", name, choice.splits)
                                                      : name;
    }
  }
  return "none";
}

/// "fc1_fprop = ring instead of none", for each product whose method changes.
std::vector<std::string> site_changes(const OverlapConfig& from, const OverlapConfig& to) {
  std::set<std::string> sites;
  for (const OverlapConfig* const overlap : {&from, &to}) {
    for (const TensorSiteChoice& choice : tensor_site_choices(*overlap)) {
      sites.insert(choice.site);
    }
  }
  std::vector<std::string> texts;
  for (const std::string& site : sites) {
    const std::string before = method_of(site, from);
    const std::string after = method_of(site, to);
    if (before != after) {
      texts.push_back(fmt::format("{} = {} instead of {}", site, after, before));
    }
  }
  return texts;
}

}  // namespace

bool has_copy_engines(const CostModel& model) {
  return model.links() == nullptr && !model.cluster().device.is_host;
}

std::vector<OverlapAxis> overlap_axes(const RunConfig& config, const AxisLimits& limits) {
  std::vector<OverlapAxis> axes = axes_of(default_pipeline(), config, limits);
  std::erase_if(axes, [](const OverlapAxis& axis) { return axis.place == AxisPlace::kWholeStep; });
  return axes;
}

OverlapAxis list_schedule_axis() {
  return list_schedule_pass({}).axes({}, {}).front();
}

void schedule_whole_step(const RunConfig& config, const AxisLimits& limits,
                         OverlapConfig& overlap) {
  for (const OverlapAxis& axis : axes_of(default_pipeline(), config, limits)) {
    if (axis.place == AxisPlace::kWholeStep) {
      axis.choices.back()(overlap);
    }
  }
}

OverlapConfig searched_overlap(const RunConfig& config) {
  const OverlapConfig& given = config.overlap;
  if (choice<OverlapMode>(given.mode) == OverlapMode::kAuto) {
    return given;
  }
  OverlapConfig searched;
  searched.disable_passes = given.disable_passes;
  if (config.runtime.ranks_per_gpu > 1) {
    searched.comm_engine = given.comm_engine;
  }
  return searched;
}

OverlapConfig manual_nothing(const OverlapConfig& overlap) {
  OverlapConfig nothing = without_overlap(overlap);
  for (const Pass& pass : default_pipeline()) {
    if (is_tried_by_name(pass)) {
      set_disabled(pass.name, true, nothing);
    }
  }
  return nothing;
}

OverlapConfig manual_defaults(const RunConfig& config) {
  RunConfig usual = config;
  usual.overlap = without_overlap(config.overlap);
  usual.overlap.mode = "auto";
  OverlapConfig overlap = overlap_in_force(usual);
  overlap.mode = "manual";
  return overlap;
}

OverlapConfig manual_rings(const RunConfig& config) {
  OverlapConfig overlap = manual_defaults(config);
  use_rings(overlap);
  return overlap;
}

std::string describe_overlap_change(const OverlapConfig& from, const OverlapConfig& to) {
  RunConfig before;
  RunConfig after;
  before.overlap = from;
  after.overlap = to;
  std::vector<std::string> texts;
  for (const Field& field : config_fields()) {
    const std::optional<ConfigValue> old_value = value_of(field, before);
    const std::optional<ConfigValue> value = value_of(field, after);
    if (field.section != "overlap" || field.name == "mode" || old_value == value) {
      continue;
    }
    if (field.name == "tp_comm_overlap_sites" && from.tp_comm_overlap && to.tp_comm_overlap) {
      std::ranges::move(site_changes(from, to), std::back_inserter(texts));
    } else if (std::holds_alternative<std::string>(*value)) {
      texts.push_back(
          fmt::format("{} = {} instead of {}", field.name, to_text(*value), to_text(*old_value)));
    } else if (field.name != "tp_comm_overlap_sites") {
      texts.push_back(fmt::format("{} = {}", field.name, to_text(*value)));
    }
  }
  return join(texts, ", ");
}

}  // namespace braid
