#include "tune/overlap_trial.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "base/parallel_for.h"
#include "base/text.h"
#include "config/validate.h"
#include "plan/exact_memory.h"
#include "plan/memory_needs.h"
#include "plan/run_spec.h"

namespace braid {
namespace {

int64_t needed_bytes(const RankPlan& rank, const RunSpec& run, const CostModel& model) {
  return rank_bytes(model.cluster().device, rank, run.config.runtime.repeatable);
}

int64_t most_compute_ns(const SimulatedRun& run) {
  int64_t most = 0;
  for (const SimulatedRank& rank : run.ranks()) {
    most = std::max(most, rank.times.compute_ns);
  }
  return most;
}

}  // namespace

bool is_better(const OverlapTrial& a, const OverlapTrial& b) {
  const auto rank = [](const OverlapTrial& trial) {
    const OverlapFigures& figures = trial.figures;
    return trial.fits ? std::tuple{0, figures.step_ns, figures.needed_bytes}
                      : std::tuple{trial.simulated ? 1 : 2, figures.needed_bytes, figures.step_ns};
  };
  return rank(a) < rank(b);
}

int64_t needed_bytes(const RunPlan& plan, const CostModel& model,
                     std::optional<int64_t> limit_bytes) {
  int64_t most = 0;
  for (const RankPlan& rank : plan.ranks) {
    int64_t bytes = needed_bytes(rank, plan.run, model);
    if (limit_bytes && bytes > *limit_bytes) {
      bytes += exact_memory(rank).peak_bytes() - rank.memory.peak_bytes();
    }
    most = std::max(most, bytes);
  }
  return most;
}

std::optional<int64_t> device_memory_bytes(const CostModel& model) {
  const DeviceSpec& device = model.cluster().device;
  return device.is_host ? std::nullopt : std::optional(device.memory_bytes);
}

OverlapTrials::OverlapTrials(RunSpec run, const CostModel& model, Options options)
    : run_(std::move(run)), model_(model), options_(std::move(options)) {}

RunConfig OverlapTrials::with(const OverlapConfig& overlap) const {
  RunConfig config = run_.config;
  config.overlap = overlap;
  return config;
}

const OverlapTrial* OverlapTrials::find(const OverlapConfig& overlap) const {
  const auto found = std::ranges::find(trials_, overlap, &OverlapTrial::overlap);
  return found == trials_.end() ? nullptr : &*found;
}

OverlapTrial OverlapTrials::simulate(const OverlapConfig& overlap) const {
  OverlapTrial trial{.overlap = overlap, .figures = {}, .why_not = {}};
  try {
    const RunConfig config = with(overlap);
    validate(config);
    const SimulatedRun run(resolve_again(run_, config), model_, {}, options_.planned);
    const auto step_ns = static_cast<double>(std::max<int64_t>(run.result().step_ns, 1));
    trial.simulated = true;
    trial.figures = {.step_ns = run.step_ns(),
                     .needed_bytes = needed_bytes(
                         run.plan(), model_,
                         options_.exact_memory ? std::optional(int64_t{0}) : options_.memory_bytes),
                     .exposed = run.means().all_exposed_ns / step_ns,
                     .most_compute = static_cast<double>(most_compute_ns(run)) / step_ns};
    trial.fits = !options_.memory_bytes || trial.figures.needed_bytes <= *options_.memory_bytes;
    if (!trial.fits) {
      trial.why_not = fmt::format("needs {} of {}", format_bytes(trial.figures.needed_bytes),
                                  format_bytes(*options_.memory_bytes));
    }
  } catch (const ConfigError& error) {  // keys that contradict each other, or the layout
    trial.why_not = error.what();
  }
  return trial;
}

std::vector<const OverlapTrial*> OverlapTrials::run(const std::vector<OverlapConfig>& settings) {
  std::vector<OverlapConfig> fresh;
  for (const OverlapConfig& setting : settings) {
    if (find(setting) == nullptr && std::ranges::find(fresh, setting) == fresh.end()) {
      fresh.push_back(setting);
    }
  }
  std::vector<OverlapTrial> made(fresh.size());
  parallel_for(fresh.size(), options_.num_threads,
               [&](size_t index) { made[index] = simulate(fresh[index]); });
  for (OverlapTrial& trial : made) {
    trials_.push_back(std::move(trial));
    if (options_.on_trial) {
      options_.on_trial(trials_.back());
    }
  }
  std::vector<const OverlapTrial*> trials;
  for (const OverlapConfig& setting : settings) {
    trials.push_back(find(setting));
  }
  return trials;
}

}  // namespace braid
