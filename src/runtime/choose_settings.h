#pragma once

#include <cstdint>
#include <optional>

#include "config/run_config.h"
#include "runtime/choose_overlap.h"
#include "runtime/memory_check.h"

namespace braid {

/// What a run leaves to braid, chosen: what is made again in the backward (`choose_recompute`) and
/// overlap (`choose_overlap`), which is searched for with recompute that fits the defaults; what
/// then fits beside it is chosen once more. `memory`: where the run happens; nothing: not known,
/// and recompute = "auto" stays, with a line that says so (programs are then planned without any).
/// Throws what these two throw.
RunConfig choose_settings(const RunConfig& config, int64_t tokenizer_vocabulary,
                          const std::optional<RunMemory>& memory,
                          const ChooseOverlapOptions& options = {});

}  // namespace braid
