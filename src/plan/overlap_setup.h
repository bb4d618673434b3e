#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "parallel/parallel_options.h"
#include "passes/pass.h"
#include "passes/pipeline.h"
#include "passes/pipeline/pair_choice.h"

namespace braid {

/// Section [overlap] translated into settings of the passes.
struct OverlapSetup {
  PipelineOptions options;                   ///< of passes that overlap; others keep defaults
  std::vector<std::string> disabled_passes;  ///< passes over one rank that are turned off
  PassContext context;  ///< rounding may change if a key asks for a pass that does
};

/// Translates the keys of [overlap] into options of passes, using what each pass declares. No other
/// code does this. "auto" uses the default options of the passes; "manual" uses the keys; "off"
/// turns off every pass that only overlaps. Requires: `overlap` is validated. Passes named in
/// overlap.disable_passes are not listed in the result.
OverlapSetup overlap_setup(const OverlapConfig& overlap);

/// Whether a key of [overlap] that counts asks for the pass.
bool is_asked_for(const Pass& pass, const OverlapConfig& overlap);

/// Whether the mode and the keys turn `pass` on.
bool is_on(const Pass& pass, const OverlapConfig& overlap);

/// When updated weights are gathered. Passes cannot choose this, because the gather may be in
/// another step.
WeightGather weight_gather(const OverlapConfig& overlap);

}  // namespace braid
