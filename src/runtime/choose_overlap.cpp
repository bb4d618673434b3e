#include "runtime/choose_overlap.h"

#include <chrono>
#include <memory>

#include "plan/run_plan.h"
#include "runtime/progress_bar.h"
#include "tune/auto_overlap.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

AutoOverlap search(const RunConfig& config, int64_t vocabulary, const CostModel& model,
                   const ChooseOverlapOptions& options) {
  if (!options.progress_bar || !options.print) {
    return auto_overlap(config, vocabulary, model);
  }
  ProgressBar bar({.print = options.print, .columns = terminal_columns, .now_ns = now_ns});
  AutoOverlapOptions search_options;
  search_options.on_progress = [&](const AutoOverlapProgress& progress) {
    bar.update({.step = progress.trials, .num_steps = progress.at_most});
  };
  AutoOverlap found = auto_overlap(config, vocabulary, model, search_options);
  bar.erase();
  return found;
}

}  // namespace

RunConfig choose_overlap(const RunConfig& config, int64_t vocabulary,
                         const ChooseOverlapOptions& options) {
  if (!wants_auto_overlap(config)) {
    return config;
  }
  const Clock::time_point begin = Clock::now();
  const auto named = options.model == nullptr ? overlap_cost_model(config) : nullptr;
  const AutoOverlap found =
      search(config, vocabulary, options.model != nullptr ? *options.model : *named, options);
  if (options.print) {
    options.print(describe(found, std::chrono::duration<double>(Clock::now() - begin).count()));
  }
  return found.config;
}

}  // namespace braid
