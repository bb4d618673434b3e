#pragma once

#include <functional>
#include <string_view>

#include "config/run_config.h"
#include "plan/run_spec.h"
#include "runtime/memory_check.h"

namespace braid {

/// Whether the run leaves to braid what the backward makes again: memory.recompute = "auto".
bool wants_auto_recompute(const RunConfig& config);

/// A run that says memory.recompute = "auto" with the policy and the number of layers that fit
/// `memory` and repeat the least work: for each policy the fewest layers (`recompute_layers`) whose
/// exact memory plan fits and leaves 1/128 of the memory free. "none" where everything fits; "full"
/// in all layers where nothing does, which `check_memory` then refuses. Any other `run` as it is.
/// Losses and weights are the same bit for bit in any case.
/// Work: bytes that cross memory, plus FLOPs and bytes between ranks at what they take beside those
/// on a GPU of today. `print` receives a line that says what was chosen; null: nobody asks. Takes
/// as long as planning two ranks per pipeline stage some ten times. Throws ConfigError as
/// `plan_run`.
RunSpec choose_recompute(const RunSpec& run, const RunMemory& memory,
                         const std::function<void(std::string_view)>& print = {});

}  // namespace braid
