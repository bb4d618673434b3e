#include "runtime/choose_settings.h"

#include "plan/run_spec.h"
#include "runtime/choose_recompute.h"
#include "tune/auto_overlap.h"

namespace braid {

RunSpec choose_settings(const RunSpec& run, const std::optional<RunMemory>& memory,
                        const ChooseOverlapOptions& options) {
  if (!wants_auto_recompute(run.config)) {
    return choose_overlap(run, options);
  }
  if (!memory) {
    if (options.print) {
      options.print(
          "recompute auto: the memory of a device is not known here, so this is planned without "
          "recompute; --device-memory or --cost say it\n");
    }
    return choose_overlap(run, options);
  }
  if (!wants_auto_overlap(run.config)) {
    return choose_recompute(run, *memory, options.print);
  }
  const RunSpec overlapped = choose_overlap(choose_recompute(run, *memory), options);
  RunConfig open = overlapped.config;
  open.memory = run.config.memory;
  return choose_recompute(resolve_again(overlapped, open), *memory, options.print);
}

}  // namespace braid
