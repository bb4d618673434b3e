#include "passes/overlap_axis.h"

#include <algorithm>
#include <iterator>

namespace braid {
namespace {

OverlapAxis on_and_off(const Pass& pass) {
  OverlapAxis axis{std::string(pass.name), {}};
  for (const bool disabled : {true, false}) {
    axis.choices.push_back([name = std::string(pass.name), disabled](OverlapConfig& overlap) {
      set_disabled(name, disabled, overlap);
    });
  }
  return axis;
}

}  // namespace

std::vector<OverlapAxis> no_axes(const RunConfig&, const AxisLimits&) {
  return {};
}

OverlapConfig without_overlap(const OverlapConfig& overlap) {
  OverlapConfig nothing;
  nothing.mode = "manual";
  nothing.cost = overlap.cost;
  nothing.comm_engine = overlap.comm_engine;
  nothing.comm_sms = overlap.comm_sms;
  nothing.product_sm_margin = overlap.product_sm_margin;
  nothing.disable_passes = overlap.disable_passes;
  return nothing;
}

bool is_tried_by_name(const Pass& pass) {
  return pass.only_overlaps && pass.keys.empty() && !pass.axes;
}

void set_disabled(std::string_view pass, bool disabled, OverlapConfig& overlap) {
  std::erase(overlap.disable_passes, pass);
  if (disabled) {
    overlap.disable_passes.emplace_back(pass);
  }
}

std::vector<OverlapAxis> axes_of(const std::vector<Pass>& passes, const RunConfig& config,
                                 const AxisLimits& limits) {
  std::vector<OverlapAxis> axes;
  for (const Pass& pass : passes) {
    if (pass.axes) {
      std::ranges::move(pass.axes(config, limits), std::back_inserter(axes));
    } else if (is_tried_by_name(pass)) {
      axes.push_back(on_and_off(pass));
    }
  }
  std::ranges::stable_sort(axes, {}, &OverlapAxis::place);
  return axes;
}

}  // namespace braid
