#include "tune/find_gains.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/parallel_for.h"
#include "config/choices.h"
#include "config/validate.h"
#include "plan/recompute_policies.h"
#include "tune/auto_overlap.h"
#include "tune/estimate_layout.h"
#include "tune/layer_prices.h"
#include "tune/overlap_axes.h"
#include "tune/overlap_trial.h"

namespace braid {
namespace {

/// A layout, its estimate, and its step if it was simulated and fits.
struct Neighbour {
  Layout layout;
  double estimated_ns = std::numeric_limits<double>::infinity();
  std::optional<StepGain> gain;
};

/// The values before and after `value` in the order of the enumerators.
template <class Enum>
std::vector<Enum> beside(Enum value, Enum last) {
  std::vector<Enum> values;
  const auto number = static_cast<int>(value);
  if (number > 0) {
    values.push_back(static_cast<Enum>(number - 1));
  }
  if (value != last) {
    values.push_back(static_cast<Enum>(number + 1));
  }
  return values;
}

void add_meshes(const Layout& layout, std::vector<Layout>& list) {
  constexpr std::array kDimensions = {&Layout::tensor, &Layout::context, &Layout::pipeline,
                                      &Layout::data};
  for (int64_t Layout::*const from : kDimensions) {
    for (int64_t Layout::*const to : kDimensions) {
      if (from != to && layout.*from % 2 == 0) {
        Layout other = layout;
        other.*from /= 2;
        other.*to *= 2;
        other.sequence_parallel = other.tensor > 1;
        if (other.pipeline == 1) {
          other.schedule = ScheduleKind::kOneForwardOneBackward;
          other.virtual_stages = 1;
        }
        list.push_back(other);
      }
    }
  }
}

void add_schedules(const Layout& layout, std::vector<Layout>& list) {
  if (layout.pipeline == 1) {
    return;
  }
  for (const ScheduleKind kind :
       {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kInterleaved, ScheduleKind::kZbH1,
        ScheduleKind::kZbV, ScheduleKind::kDualpipeV}) {
    const bool is_v = kind == ScheduleKind::kZbV || kind == ScheduleKind::kDualpipeV;
    Layout other = layout;
    other.schedule = kind;
    if (kind != ScheduleKind::kInterleaved) {
      other.virtual_stages = is_v ? 2 : 1;
      list.push_back(other);
      continue;
    }
    for (int64_t stages = std::max<int64_t>(2, layout.virtual_stages / 2);
         stages <= 2 * layout.virtual_stages; ++stages) {
      other.virtual_stages = stages;
      list.push_back(other);
    }
  }
}

void add_memory_choices(const Layout& layout, int64_t expert_tensor, std::vector<Layout>& list) {
  for (const RecomputeChoice recompute :
       policies_beside(recompute_policies(layout, expert_tensor), layout.recompute)) {
    list.push_back(layout);
    list.back().recompute = recompute;
  }
  for (const ShardKind shard : beside(layout.shard, ShardKind::kParameters)) {
    list.push_back(layout);
    list.back().shard = shard;
  }
}

class GainFinder {
 public:
  GainFinder(const SimulatedRun& run, const GainOptions& options)
      : run_(run), model_(run.model()), options_(options), layout_(layout_of(run.spec().config)) {}

  StepGains find() {
    StepGains gains{
        .path = step_path_with_gains(run_, options_.num_threads), .gains = {}, .nothing = {}};
    for (StepGain& gain :
         std::array{best_layout(), best_overlap(), best_hardware(run_, options_.num_threads)}) {
      const auto step_ns = static_cast<double>(run_.step_ns());
      if (static_cast<double>(gain.step_ns) < step_ns * (1 - kLeastGain)) {
        gains.gains.push_back(std::move(gain));
      } else {
        gains.nothing.push_back(std::move(gain.kind));
      }
    }
    return gains;
  }

 private:
  /// The step of `run_` when one of a rank per stage goes from `before_ns` to `after_ns`.
  int64_t scaled(int64_t before_ns, int64_t after_ns) const {
    return std::llround(static_cast<double>(run_.step_ns()) * static_cast<double>(after_ns) /
                        static_cast<double>(before_ns));
  }

  StepGain best_layout() {
    StepGain best{.kind = "layout", .what = {}, .step_ns = run_.step_ns()};
    const RunConfig& config = run_.spec().config;
    if (config.parallel.ranks == 1 && config.train.global_batch == 1) {
      return best;
    }
    const SimulatedRun before(run_.spec(), model_, {}, PlannedRanks::kOnePerStage);
    std::vector<Neighbour> list = estimated();
    parallel_for(list.size(), options_.num_threads,
                 [&](size_t index) { simulate(list[index], before.step_ns()); });
    for (Neighbour& it : list) {
      if (it.gain && it.gain->step_ns < best.step_ns) {
        best = std::move(*it.gain);
      }
    }
    return best;
  }

  /// The most promising neighbours. The estimator keeps a reference to its configuration.
  std::vector<Neighbour> estimated() const {
    const RunConfig config = without_stages();
    const LayoutEstimator estimator(config, run_.spec().model, model_);
    std::vector<Neighbour> list;
    for (const Layout& layout : neighbours(layout_, config.parallel.expert_tensor)) {
      if (!is_allowed(layout)) {
        continue;
      }
      list.push_back({.layout = layout, .gain = {}});
    }
    parallel_for(list.size(), options_.num_threads, [&](size_t index) {
      Neighbour& it = list[index];
      try {
        const LayerPrices prices = price_layers(
            config, run_.spec().model, run_.spec().tokenizer_vocabulary, it.layout, model_);
        const double limit = static_cast<double>(
            device_memory_bytes(model_).value_or(std::numeric_limits<int64_t>::max()));
        if (estimator.bounds(it.layout, prices).peak_bytes <= kMemorySlack * limit) {
          it.estimated_ns = estimator.step_ns(it.layout, prices);
        }
      } catch (const ConfigError&) {  // a rule that is_allowed does not know
      }
    });
    std::erase_if(list, [](const Neighbour& it) { return std::isinf(it.estimated_ns); });
    std::ranges::stable_sort(list, {}, &Neighbour::estimated_ns);
    list.resize(std::min(list.size(), static_cast<size_t>(options_.num_layouts)));
    return list;
  }

  RunConfig without_stages() const {
    RunConfig config = run_.spec().config;
    config.parallel.pipeline_layout.clear();
    config.parallel.first_stage_layers = config.parallel.last_stage_layers = 0;
    config.parallel.microbatch_group_size = 0;
    config.parallel.context_inner = 0;
    return config;
  }

  RunConfig config_of(const Layout& layout) const {
    RunConfig config = with_layout(without_stages(), layout);
    validate(config);
    return resolved(std::move(config));
  }

  bool is_allowed(const Layout& layout) const {
    if (layout.tensor > model_.cluster().devices_per_node) {
      return false;
    }
    try {
      config_of(layout);
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  }

  void simulate(Neighbour& it, int64_t before_ns) const {
    try {
      const SimulatedRun after(resolve_again(run_.spec(), config_of(it.layout)), model_, {},
                               PlannedRanks::kOnePerStage);
      const std::optional<int64_t> limit = device_memory_bytes(model_);
      const int64_t needed = needed_bytes(after.plan(), model_, limit);
      if (!limit || needed <= *limit) {
        it.gain = {.kind = "layout",
                   .what = layout_name(it.layout) + " instead of " + layout_name(layout_),
                   .step_ns = scaled(before_ns, after.step_ns()),
                   .needed_bytes = needed};
      }
    } catch (const ConfigError&) {  // a rule that only the whole plan knows
    }
  }

  StepGain best_overlap() const {
    StepGain best{.kind = "overlap", .what = {}, .step_ns = run_.step_ns()};
    RunConfig config = run_.spec().config;
    const OverlapConfig given = config.overlap;
    config.overlap = searched_overlap(config);
    const AutoOverlap found =
        auto_overlap(resolve_again(run_.spec(), config), model_,
                     {.max_trials = options_.num_overlaps, .num_threads = options_.num_threads});
    const std::string change =
        describe_overlap_change(manual_form(given), found.run.config.overlap);
    if (!found.fits || change.empty()) {
      return best;
    }
    OverlapTrials trials(run_.spec(), model_, {.num_threads = options_.num_threads});
    best.step_ns = scaled(trials.run(given).figures.step_ns, found.chosen.step_ns);
    best.needed_bytes = found.chosen.needed_bytes;
    best.what = change;
    return best;
  }

  /// The section as mode = "manual" would say it.
  OverlapConfig manual_form(const OverlapConfig& overlap) const {
    switch (choice<OverlapMode>(overlap.mode)) {
      case OverlapMode::kAuto:
        return manual_defaults(run_.spec().config);
      case OverlapMode::kOff:
        return manual_nothing(overlap);
      default:
        return overlap;
    }
  }

  static constexpr double kMemorySlack = 1.1;  // as in a search: estimates may be too high

  const SimulatedRun& run_;
  const CostModel& model_;
  const GainOptions& options_;
  Layout layout_;
};

}  // namespace

std::vector<Layout> neighbours(const Layout& layout, int64_t expert_tensor) {
  std::vector<Layout> list;
  add_meshes(layout, list);
  for (const int64_t microbatch : {2 * layout.microbatch, layout.microbatch / 2}) {
    list.push_back(layout);
    list.back().microbatch = microbatch;
  }
  add_schedules(layout, list);
  add_memory_choices(layout, expert_tensor, list);
  std::erase_if(list, [&](const Layout& it) { return it == layout || it.microbatch == 0; });
  return list;
}

StepGains find_gains(const SimulatedRun& run, const GainOptions& options) {
  return GainFinder(run, options).find();
}

}  // namespace braid
