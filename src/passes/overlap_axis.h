#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "passes/pass.h"

namespace braid {

/// Sets keys of [overlap].
using OverlapChange = std::function<void(OverlapConfig&)>;

/// The place of an axis in the order in which a search tries the axes. Axes with the same place are
/// tried in the order of their passes.
enum class AxisPlace : uint8_t {
  kMessages,       ///< between pipeline stages
  kStageWgrads,    ///< weight gradients moved behind these messages
  kGradients,      ///< whether their reductions overlap
  kLastReduction,  ///< which work hides the last reduction
  kGathers,
  kContext,
  kTensor,
  kPairs,
  kSplits,
  kEngines,
  kOther,
  kWholeStep,  ///< needs a simulation of the whole step: not among `overlap_axes`
};

/// Keys of [overlap] that are chosen together. The first choice turns the feature off.
struct OverlapAxis {
  std::string name;  ///< "p2p", "qkv": shown in the output of a search
  std::vector<OverlapChange> choices;
  AxisPlace place = AxisPlace::kOther;
};

/// Limits that the model and the machine set for the axes.
struct AxisLimits {
  int64_t layers_of_job = 1;  ///< layers in a backward job: at most this many can be delayed
  int64_t num_microbatches = 1;
  bool copy_engines = false;  ///< the machine can move bytes between ranks with copy engines
};

/// All axes to try for `config` with these passes, in the order of their places: the result of
/// `Pass::axes` or, for a pass that `is_tried_by_name`, the pass on and off.
std::vector<OverlapAxis> axes_of(const std::vector<Pass>& passes, const RunConfig& config,
                                 const AxisLimits& limits);

/// The section with mode = "manual" and all overlap off. Keeps `cost`, `comm_engine`, numbers of
/// multiprocessors and `disable_passes`; keys that limit what a search may choose get their
/// defaults.
OverlapConfig without_overlap(const OverlapConfig& overlap);

/// Whether a search tries the pass on and off: a pass that only overlaps and has neither keys nor
/// axes.
bool is_tried_by_name(const Pass& pass);

/// Turns a pass on or off by name, in overlap.disable_passes.
void set_disabled(std::string_view pass, bool disabled, OverlapConfig& overlap);

}  // namespace braid
