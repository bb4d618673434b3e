#pragma once

#include <optional>

#include "plan/run_spec.h"
#include "runtime/choose_overlap.h"
#include "runtime/memory_check.h"

namespace braid {

/// Resolves the automatic settings of a run: recomputation (`choose_recompute`) and overlap
/// (`choose_overlap`). Overlap is searched with the recomputation that fits the default overlap;
/// then recomputation is chosen again for the overlap found. `memory`: the memory of the run;
/// nullopt: unknown, so recompute = "auto" stays, with a message (programs are then planned without
/// recomputation). Throws as these two functions do.
RunSpec choose_settings(const RunSpec& run, const std::optional<RunMemory>& memory,
                        const ChooseOverlapOptions& options = {});

}  // namespace braid
