#pragma once

#include <functional>
#include <string_view>

#include "config/run_config.h"
#include "plan/run_spec.h"
#include "runtime/memory_check.h"

namespace braid {

/// Whether braid chooses what the backward recomputes: memory.recompute = "auto".
bool wants_auto_recompute(const RunConfig& config);

/// For a run with memory.recompute = "auto", chooses the policy and the number of layers that fit
/// `memory` and repeat the least work. For each policy it takes the fewest layers
/// (`recompute_layers`) whose exact memory plan fits and leaves 1/128 of the memory free. "none" if
/// everything fits; "full" in all layers if nothing does, which `check_memory` then rejects. Any
/// other `run` is returned unchanged. Losses and weights are bitwise the same in any case. Work:
/// bytes that cross memory, plus FLOPs and bytes between ranks, weighted by their cost relative to
/// memory bytes on a current GPU. `print` receives a line with the choice; may be null. Takes as
/// long as planning two ranks per pipeline stage about ten times. Throws ConfigError as `plan_run`.
RunSpec choose_recompute(const RunSpec& run, const RunMemory& memory,
                         const std::function<void(std::string_view)>& print = {});

}  // namespace braid
