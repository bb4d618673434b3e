#include "runtime/choose_overlap.h"

#include <chrono>
#include <utility>

#include "plan/run_spec.h"
#include "runtime/progress_bar.h"
#include "tune/auto_overlap.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

AutoOverlap search(const RunSpec& run, const CostModel& model,
                   const ChooseOverlapOptions& options) {
  if (!options.progress_bar || !options.print) {
    return auto_overlap(run, model);
  }
  ProgressBar bar({.print = options.print, .columns = terminal_columns, .now_ns = now_ns});
  AutoOverlapOptions search_options;
  search_options.on_progress = [&](const AutoOverlapProgress& progress) {
    bar.update({.step = progress.trials, .num_steps = progress.at_most});
  };
  AutoOverlap found = auto_overlap(run, model, search_options);
  bar.erase();
  return found;
}

}  // namespace

RunSpec choose_overlap(const RunSpec& run, const ChooseOverlapOptions& options) {
  if (!wants_auto_overlap(run.config)) {
    return run;
  }
  const Clock::time_point begin = Clock::now();
  AutoOverlap found =
      search(run, options.model != nullptr ? *options.model : *run.cost_model, options);
  if (options.print) {
    options.print(describe(found, std::chrono::duration<double>(Clock::now() - begin).count()));
  }
  return std::move(found.run);
}

}  // namespace braid
