#pragma once

#include <optional>

#include "plan/run_spec.h"
#include "runtime/choose_overlap.h"
#include "runtime/memory_check.h"

namespace braid {

/// What a run leaves to braid, chosen: what is made again in the backward (`choose_recompute`) and
/// overlap (`choose_overlap`), which is searched for with recompute that fits the defaults; what
/// then fits beside it is chosen once more. `memory`: where the run happens; nothing: not known,
/// and recompute = "auto" stays, with a line that says so (programs are then planned without any).
/// Throws what these two throw.
RunSpec choose_settings(const RunSpec& run, const std::optional<RunMemory>& memory,
                        const ChooseOverlapOptions& options = {});

}  // namespace braid
