#include "passes/pipeline/pair_choice.h"

#include <string_view>
#include <utility>

#include "base/errors.h"
#include "config/choices.h"
#include "config/validate.h"
#include "passes/tensor/tensor_axes.h"

namespace braid {
namespace {

constexpr std::string_view kForwardBackward = "forward_backward";
constexpr std::string_view kHalves = "halves";
constexpr std::string_view kForwardHalves = "forward_halves";

OverlapChange pair(std::string_view kind) {
  return [kind](OverlapConfig& overlap) { overlap.pair_forward_backward = kind; };
}

/// Halved forwards hide the communication that rings would hide, so products stay whole at first.
void halve_forwards(OverlapConfig& overlap) {
  overlap.pair_forward_backward = kForwardHalves;
  if (overlap.tp_comm_overlap) {
    keep_forward_whole(overlap);
  }
}

/// Which jobs can be woven depends on the schedule and the microbatches. `validate` decides.
bool can_pair(const RunConfig& config, std::string_view kind) {
  RunConfig paired = config;
  paired.overlap = without_overlap(config.overlap);
  pair(kind)(paired.overlap);
  try {
    validate(paired);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace

JobPairs job_pairs(const OverlapConfig& overlap) {
  switch (choice<PairKind>(overlap.pair_forward_backward)) {
    case PairKind::kForwardBackward:
      return JobPairs::kForwardBackward;
    case PairKind::kHalves:
      return JobPairs::kHalves;
    case PairKind::kNone:
    case PairKind::kForwardHalves:
      return JobPairs::kNone;
  }
  throw_internal_error("no pairs");
}

bool halves_forwards(const OverlapConfig& overlap) {
  return choice<PairKind>(overlap.pair_forward_backward) == PairKind::kForwardHalves;
}

std::vector<OverlapAxis> pair_axes(const RunConfig& config, const AxisLimits&) {
  const bool rounding = config.overlap.may_change_rounding;
  OverlapAxis pairs{"pairs", {pair("none")}, AxisPlace::kPairs};
  if (can_pair(config, kForwardBackward)) {
    pairs.choices.push_back(pair(kForwardBackward));
  }
  // Halves of a microbatch add weight gradients, or only those of norms, in another order.
  if (rounding && can_pair(config, kHalves)) {
    pairs.choices.push_back(pair(kHalves));
  }
  if (rounding && can_pair(config, kForwardHalves)) {
    pairs.choices.emplace_back(halve_forwards);
  }
  if (pairs.choices.size() == 1) {
    return {};
  }
  return {std::move(pairs)};
}

}  // namespace braid
