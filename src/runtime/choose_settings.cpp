#include "runtime/choose_settings.h"

#include "plan/run_spec.h"
#include "runtime/choose_gather_budget.h"
#include "runtime/choose_recompute.h"
#include "tune/auto_overlap.h"

namespace braid {
namespace {

/// Recomputation first, because the budget takes the memory that is left.
RunSpec choose_for_memory(const RunSpec& run, const RunMemory& memory,
                          const std::function<void(std::string_view)>& print = {}) {
  return choose_gather_budget(choose_recompute(run, memory, print), memory, print);
}

}  // namespace

RunSpec choose_settings(const RunSpec& run, const std::optional<RunMemory>& memory,
                        const ChooseOverlapOptions& options) {
  const bool recomputes = wants_auto_recompute(run.config);
  const bool has_budget = wants_auto_gather_budget(run.config);
  if (!recomputes && !has_budget) {
    return choose_overlap(run, options);
  }
  if (!memory) {
    if (options.print && recomputes) {
      options.print(
          "recompute auto: the memory of a device is not known here, so this is planned without "
          "recompute; --device-memory or --cost say it\n");
    }
    if (options.print && has_budget) {
      options.print(
          "gather budget auto: the memory of a device is not known here, so gathers are planned by "
          "units; --device-memory or --cost say it\n");
    }
    return choose_overlap(run, options);
  }
  if (!wants_auto_overlap(run.config)) {
    return choose_for_memory(run, *memory, options.print);
  }
  if (!recomputes) {
    return choose_overlap(choose_for_memory(run, *memory, options.print), options);
  }
  const RunSpec overlapped = choose_overlap(choose_for_memory(run, *memory), options);
  RunConfig open = overlapped.config;
  open.memory = run.config.memory;
  return choose_for_memory(resolve_again(overlapped, open), *memory, options.print);
}

}  // namespace braid
