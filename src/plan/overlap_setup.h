#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"
#include "parallel/parallel_options.h"
#include "passes/pass.h"
#include "passes/pipeline.h"
#include "passes/pipeline/pair_choice.h"

namespace braid {

/// What section [overlap] means for the passes.
struct OverlapSetup {
  PipelineOptions options;  ///< of the passes that overlap; the others' are default
  std::vector<std::string> disabled_passes;  ///< over one rank, that the mode or a key turns off
  PassContext context;  ///< rounding may change where a key asks for what may change it
};

/// The one place where keys of [overlap] become options of passes, by what each pass says of
/// itself. "auto" takes the defaults of the passes' options; "manual" what their keys say; "off"
/// turns every pass off that only overlaps. `overlap` must be validated. Passes named in
/// overlap.disable_passes are not listed here.
OverlapSetup overlap_setup(const OverlapConfig& overlap);

/// Whether the mode and the pass's keys ask for it.
bool is_on(const Pass& pass, const OverlapConfig& overlap);

/// When updated weights are gathered: what passes cannot choose, since it may be in another step.
WeightGather weight_gather(const OverlapConfig& overlap);

}  // namespace braid
