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

/// Where an axis comes in the order in which a search goes through them; of equal ones that of the
/// earlier pass comes first.
enum class AxisPlace : uint8_t {
  kMessages,       ///< between pipeline stages
  kStageWgrads,    ///< weight gradients that wait for them
  kGradients,      ///< whether their reductions overlap
  kLastReduction,  ///< what the last of them runs under
  kGathers,
  kContext,
  kTensor,
  kPairs,
  kSplits,
  kEngines,
  kOther,
  kWholeStep,  ///< needs a simulation of the whole step: not among `overlap_axes`
};

/// Keys of [overlap] that are chosen together. The first choice does without what they are about.
struct OverlapAxis {
  std::string name;  ///< "p2p", "qkv": for people who read a search
  std::vector<OverlapChange> choices;
  AxisPlace place = AxisPlace::kOther;
};

/// What a model's layers and its machine mean for the axes.
struct AxisLimits {
  int64_t layers_of_job = 1;  ///< layers of a backward job: more cannot wait
  int64_t num_microbatches = 1;
  bool copy_engines = false;  ///< that could move bytes between ranks
};

/// All that can be tried for `config` with the passes that there are, in the order of their places:
/// `Pass::axes` of each, or the pass on and off.
std::vector<OverlapAxis> axes_of(const std::vector<Pass>& passes, const RunConfig& config,
                                 const AxisLimits& limits);

/// mode = "manual" with no key on, and the comm_engine that there is; keys that say what may be
/// chosen are gone.
OverlapConfig without_overlap(const OverlapConfig& overlap);

/// Whether a search tries the pass on and off: it only overlaps, and has no keys and no axes.
bool is_tried_by_name(const Pass& pass);

/// Turns a pass on or off by name, in overlap.disable_passes.
void set_disabled(std::string_view pass, bool disabled, OverlapConfig& overlap);

}  // namespace braid
