#include "tune/auto_overlap.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "config/choices.h"
#include "config/validate.h"
#include "plan/model_setup.h"
#include "plan/schedule_plan.h"
#include "plan/simulated_run.h"
#include "trace/explain_exposed.h"
#include "tune/overlap_axes.h"

namespace braid {
namespace {

constexpr size_t kFinalists = 3;
constexpr size_t kFinalistsByKeys = 2;
constexpr int kMaxRounds = 3;
/// Axes that fill waits, and the reduction of the backward with the least compute after it.
constexpr std::array<std::string_view, 4> kWovenAxes = {"tensor", "pairs", "split", "qkv"};
constexpr size_t kScheduled = 2;  // of the best settings; each trial takes as long as many others

/// Four digits, because settings are often close to each other.
std::string step_text(const OverlapFigures& figures) {
  const double seconds = static_cast<double>(figures.step_ns) * 1e-9;
  return seconds >= 1 ? fmt::format("{:.4g} s", seconds) : fmt::format("{:.4g} ms", 1e3 * seconds);
}

bool is_in_mode(const OverlapConfig& overlap, OverlapMode mode) {
  return choice<OverlapMode>(overlap.mode) == mode;
}

OverlapConfig switched_off(const OverlapConfig& overlap) {
  OverlapConfig off;
  off.mode = choice_name(OverlapMode::kOff);
  off.cost = overlap.cost;
  off.comm_engine = choice<EngineChoice>(overlap.comm_engine) == EngineChoice::kHidden
                        ? off.comm_engine
                        : overlap.comm_engine;
  off.comm_sms = overlap.comm_sms;
  off.product_sm_margin = overlap.product_sm_margin;
  off.disable_passes = overlap.disable_passes;
  return off;
}

/// Size of a step without overlap: layers of the model and of the largest job, tasks of one rank
/// per stage, memory of the rank that needs most.
struct StepSize {
  LayerPattern layers;
  int64_t layers_of_job = 1;
  int64_t num_tasks = 0;
  int64_t needed_bytes = 0;
};

StepSize step_size(const RunSpec& run, const CostModel& model) {
  const RunPlan plan = plan_run(run, {.one_rank_per_stage = true, .verify = false});
  StepSize size{.layers = run.model.layers, .needed_bytes = needed_bytes(plan, model, {})};
  for (const StageSlice& stage : run.parallel.stages) {
    size.layers_of_job = std::max<int64_t>(size.layers_of_job, stage.num_layers);
  }
  for (const RankPlan& rank : plan.ranks) {
    size.num_tasks += static_cast<int64_t>(rank.programs[kTrainProgram].tasks.size());
  }
  return size;
}

/// Returns `reduced` if it is valid, else `config`.
RunConfig if_valid(const RunConfig& reduced, const RunConfig& config) {
  try {
    validate(reduced);
    return reduced;
  } catch (const ConfigError&) {
    return config;
  }
}

/// Reduces the microbatches such that a pipeline still reaches its steady state. The data
/// dimension, and so the cost of gradients, stays. Returns `config` if it is small enough or cannot
/// have fewer.
RunConfig with_fewer_microbatches(const RunConfig& config, int64_t num_tasks, int64_t max_tasks) {
  const int64_t stages = config.parallel.pipeline;
  const int64_t microbatches = num_microbatches(config);
  const int64_t group =
      config.parallel.microbatch_group_size > 0 ? config.parallel.microbatch_group_size : stages;
  const int64_t wanted = microbatches * max_tasks / std::max<int64_t>(num_tasks, 1);
  const int64_t least = stages == 1 ? 2 : 2 * stages;
  const int64_t fewer = (std::max(wanted, least) + group - 1) / group * group;
  if (num_tasks <= max_tasks || fewer >= microbatches) {
    return config;
  }
  RunConfig reduced = config;
  reduced.train.global_batch = config.train.global_batch / microbatches * fewer;
  return if_valid(reduced, config);
}

/// Reduces the layers, each kind in proportion, if they repeat, if there is one pipeline stage, and
/// if memory, of which some settings take more per layer, does not limit the choice.
RunConfig with_fewer_layers(const RunConfig& config, const StepSize& size, int64_t max_layers,
                            std::optional<int64_t> memory_bytes) {
  const bool are_alike = config.parallel.pipeline == 1 && config.memory.recompute_layers == 0 &&
                         config.memory.offload_layers == 0;
  const bool has_room = !memory_bytes || size.needed_bytes <= *memory_bytes / 2;
  if (!are_alike || !has_room || size.layers.size() < 2 * max_layers) {
    return config;
  }
  RunConfig reduced = config;
  reduced.model = with_layers(reduced.model, size.layers.sample(max_layers));
  return if_valid(reduced, config);
}

/// Number of layers of the run that is searched instead of `config`.
int64_t searched_layers(const RunConfig& searched, const RunConfig& config, const StepSize& size,
                        const AutoOverlapOptions& options) {
  return searched.model == config.model ? size.layers.size()
                                        : size.layers.sample(options.max_layers).size();
}

/// The run on which settings are tried: `config`, or a smaller run in which the same settings are
/// fast.
RunConfig searched_run(const RunConfig& config, const StepSize& size,
                       std::optional<int64_t> memory_bytes, const AutoOverlapOptions& options) {
  const RunConfig few_layers = with_fewer_layers(config, size, options.max_layers, memory_bytes);
  const int64_t num_layers = searched_layers(few_layers, config, size, options);
  return with_fewer_microbatches(few_layers, size.num_tasks * num_layers / size.layers.size(),
                                 options.max_tasks);
}

/// The simulated trials, best first.
std::vector<const OverlapTrial*> ranked_trials(const OverlapTrials& trials) {
  std::vector<const OverlapTrial*> ranked;
  for (const OverlapTrial& trial : trials.all()) {
    if (trial.simulated) {
      ranked.push_back(&trial);
    }
  }
  std::ranges::stable_sort(ranked, [](const auto* a, const auto* b) { return is_better(*a, *b); });
  return ranked;
}

class OverlapSearch {
 public:
  OverlapSearch(const RunConfig& config, OverlapTrials& trials, const AxisLimits& limits,
                const AutoOverlapOptions& options)
      : config_(config),
        trials_(trials),
        limits_(limits),
        axes_(overlap_axes(config, limits)),
        options_(options) {}

  void run() {
    trials_.run(starts());
    descend(best().overlap);
    if (options_.list_schedule) {
      schedule_best();
      // After weaving on top of a scheduled order, other keys below it may be better.
      descend(apply(list_schedule_axis().choices.front(), best().overlap));
      schedule_best();
    }
  }

  const OverlapTrial& best() const {
    const std::deque<OverlapTrial>& all = trials_.all();
    return *std::min_element(all.begin(), all.end(), is_better);
  }

  /// The gain of each axis, largest first: the chosen setting compared with the same setting
  /// without that axis. List scheduling comes on top, because it costs more to try than all others.
  /// Axes without a visible gain come last.
  std::vector<std::string> reasons(const OverlapConfig& chosen) {
    const OverlapAxis schedule = list_schedule_axis();
    const OverlapTrial& keys = trials_.run(apply(schedule.choices.front(), chosen));
    std::vector<Gain> gains;
    for (const OverlapAxis& axis : axes_) {
      const OverlapConfig without = apply(axis.choices.front(), keys.overlap);
      if (without != keys.overlap && trials_.run(without).simulated) {
        gains.push_back({&trials_.run(without), &keys});
      }
    }
    if (chosen.list_schedule) {
      gains.push_back({&keys, &trials_.run(chosen)});
    }
    std::ranges::stable_sort(gains, std::ranges::greater(), &Gain::ns);
    return texts_of(gains);
  }

 private:
  static OverlapConfig apply(const OverlapChange& change, OverlapConfig overlap) {
    change(overlap);
    return overlap;
  }

  void schedule_best() {
    trials_.run(scheduled());
    weave_scheduled();
  }

  std::vector<OverlapConfig> starts() const {
    std::vector<OverlapConfig> settings = {
        switched_off(config_.overlap), manual_nothing(config_.overlap), manual_defaults(config_)};
    if (config_.overlap.may_change_rounding && config_.parallel.sequence_parallel) {
      settings.push_back(manual_rings(config_));
    }
    return settings;
  }

  /// The best settings so far, and those that leave most to list scheduling, with list scheduling
  /// on.
  std::vector<OverlapConfig> scheduled() const {
    std::vector<OverlapConfig> settings = {manual_nothing(config_.overlap),
                                           manual_defaults(config_)};
    const std::vector<const OverlapTrial*> ranked = ranked_trials(trials_);
    for (size_t i = 0; i < ranked.size() && settings.size() < 2 + kScheduled; ++i) {
      if (is_in_mode(ranked[i]->overlap, OverlapMode::kManual)) {
        settings.push_back(ranked[i]->overlap);
      }
    }
    for (OverlapConfig& overlap : settings) {
      schedule_whole_step(config_, limits_, overlap);
    }
    return settings;
  }

  /// Rules that fill waits change how much is left to list scheduling. So they are chosen again on
  /// top of the best order.
  void weave_scheduled() {
    const OverlapTrial* best = nullptr;
    for (const OverlapTrial* const trial : ranked_trials(trials_)) {
      best = best == nullptr && is_scheduled(trial->overlap) ? trial : best;
    }
    if (best == nullptr) {
      return;
    }
    for (const OverlapAxis& axis : axes_) {
      if (std::ranges::find(kWovenAxes, axis.name) != kWovenAxes.end()) {
        best = best_choice(axis, best);
      }
    }
  }

  /// Takes the best choice of one axis after the other, until nothing improves or there are enough
  /// trials.
  void descend(OverlapConfig overlap) {
    if (!is_in_mode(overlap, OverlapMode::kManual)) {
      overlap = manual_nothing(config_.overlap);
    }
    const OverlapTrial* current = &trials_.run(overlap);
    for (int round = 0; round < kMaxRounds; ++round) {
      const OverlapTrial* const before = current;
      for (const OverlapAxis& axis : axes_) {
        if (static_cast<int64_t>(trials_.all().size()) < options_.max_trials) {
          current = best_choice(axis, current);
        }
      }
      if (current == before) {
        return;
      }
    }
  }

  const OverlapTrial* best_choice(const OverlapAxis& axis, const OverlapTrial* current) {
    std::vector<OverlapConfig> settings;
    for (const OverlapChange& choice : axis.choices) {
      settings.push_back(apply(choice, current->overlap));
    }
    for (const OverlapTrial* const trial : trials_.run(settings)) {
      current = is_better(*trial, *current) ? trial : current;
    }
    return current;
  }

  struct Gain {
    const OverlapTrial* without;
    const OverlapTrial* chosen;

    int64_t ns() const { return without->figures.step_ns - chosen->figures.step_ns; }
  };

  static std::vector<std::string> texts_of(const std::vector<Gain>& gains) {
    std::vector<std::string> texts;
    std::vector<std::string> no_difference;
    for (const Gain& gain : gains) {
      const std::string change =
          describe_overlap_change(gain.without->overlap, gain.chosen->overlap);
      if (change.empty()) {
        continue;  // the same setting, written differently
      }
      const std::string before = step_text(gain.without->figures);
      const std::string after = step_text(gain.chosen->figures);
      if (before == after && gain.without->fits) {
        no_difference.push_back(change);
      } else {
        texts.push_back(fmt::format(
            "{}: {} -> {}{}", change, before, after,
            gain.without->fits ? "" : fmt::format(" (without: {})", gain.without->why_not)));
      }
    }
    if (!no_difference.empty()) {
      texts.push_back("no difference: " + join(no_difference, ", "));
    }
    return texts;
  }

  const RunConfig& config_;
  OverlapTrials& trials_;
  const AxisLimits limits_;
  const std::vector<OverlapAxis> axes_;
  const AutoOverlapOptions& options_;
};

/// The settings to simulate on the whole step: those that the result is compared with, and the best
/// ones. Some of these are without list scheduling, which may gain nothing with more microbatches.
std::vector<OverlapConfig> finalists(const OverlapTrials& trials, const RunConfig& config) {
  std::vector<OverlapConfig> settings = {switched_off(config.overlap), manual_defaults(config)};
  settings.back().list_schedule = config.overlap.list_schedule;
  size_t num_all = 0;
  size_t num_by_keys = 0;
  for (const OverlapTrial* const trial : ranked_trials(trials)) {
    const bool is_by_keys = !is_scheduled(trial->overlap);
    if (num_all < kFinalists || (is_by_keys && num_by_keys < kFinalistsByKeys)) {
      settings.push_back(trial->overlap);
      if (config.overlap.list_schedule && !is_in_mode(trial->overlap, OverlapMode::kOff)) {
        settings.back().list_schedule = true;
      }
      ++num_all;
      num_by_keys += is_by_keys ? 1 : 0;
    }
  }
  return settings;
}

/// Whether one rank per stage is simulated as all are: no other ranks hold other parts.
bool is_one_per_stage(const ParallelConfig& parallel) {
  return parallel.tensor == 1 && parallel.context == 1;
}

/// The ranks that are simulated for the finalists. All, as in `braid simulate`, if these are few.
PlannedRanks planned_for_finalists(const ParallelConfig& parallel) {
  constexpr int64_t kMaxPlaces = 16;
  const int64_t places = parallel.tensor * parallel.context * parallel.pipeline;
  return !is_one_per_stage(parallel) && places <= kMaxPlaces ? PlannedRanks::kEveryPlaceQuickly
                                                             : PlannedRanks::kOnePerStage;
}

/// The ranks that stand for all in a run.
PlannedRanks planned_as_run(const ParallelConfig& parallel) {
  return is_one_per_stage(parallel) ? PlannedRanks::kOnePerStage : PlannedRanks::kEveryPlaceQuickly;
}

/// Trials as the run itself, and with memory as it is planned for a run.
OverlapTrials::Options options_as_run(const ParallelConfig& parallel,
                                      OverlapTrials::Options options) {
  options.planned = planned_as_run(parallel);
  options.exact_memory = true;
  return options;
}

OverlapTrials::Options trial_options(const CostModel& model, const AutoOverlapOptions& options) {
  return {.memory_bytes = options.memory_bytes ? options.memory_bytes : device_memory_bytes(model),
          .planned = PlannedRanks::kOnePerStage,
          .num_threads = options.num_threads,
          .on_trial = {}};
}

std::vector<std::string> explain_communication(const RunSpec& chosen, const CostModel& model,
                                               PlannedRanks planned) {
  const SimulatedRun run(chosen, model, {}, planned);
  const std::vector<int> ranks = first_rank_of_stages(run.spec().mesh);
  std::vector<std::string> sentences;
  for (const ExplainedCommunication& one : explain_exposed(run.timeline(ranks))) {
    sentences.push_back(describe_exposed(one));
  }
  return sentences;
}

/// Whether a setting keeps the values that the run file gives besides mode = "auto".
bool keeps_given(const OverlapConfig& overlap, const OverlapConfig& given) {
  return (choice<EngineChoice>(given.comm_engine) == EngineChoice::kAuto ||
          overlap.comm_engine == given.comm_engine) &&
         (!given.list_schedule || overlap.list_schedule);
}

/// The best trial that keeps the given keys. A list-scheduled order takes memory and time to plan,
/// so it is chosen only if it gains something.
const OverlapTrial* best_of(const std::vector<const OverlapTrial*>& trials,
                            const OverlapConfig& given) {
  constexpr int64_t kLeastGainPart = 500;  // 0.2% of the step
  const auto best_where = [&](const auto& is_wanted) {
    const OverlapTrial* best = nullptr;
    for (const OverlapTrial* const trial : trials) {
      if (keeps_given(trial->overlap, given) && is_wanted(*trial) &&
          (best == nullptr || is_better(*trial, *best))) {
        best = trial;
      }
    }
    return best;
  };
  const OverlapTrial* const best = best_where([](const OverlapTrial&) { return true; });
  const OverlapTrial* const best_by_keys =
      best_where([](const OverlapTrial& trial) { return !is_scheduled(trial.overlap); });
  const bool is_worth_it = best_by_keys == nullptr || best->fits != best_by_keys->fits ||
                           best_by_keys->figures.step_ns - best->figures.step_ns >=
                               best_by_keys->figures.step_ns / kLeastGainPart;
  return is_worth_it ? best : best_by_keys;
}

/// Settings with other numbers of units that stay whole. The best number depends on the time of the
/// optimizer, under which units are gathered; fewer layers shorten that time.
std::vector<OverlapConfig> other_whole_units(const OverlapConfig& best) {
  std::vector<OverlapConfig> settings;
  for (const OverlapChange& choice : whole_units_axis().choices) {
    settings.push_back(best);
    choice(settings.back());
  }
  std::erase(settings, best);
  return settings;
}

/// Counts trials for on_progress.
std::function<void(const OverlapTrial&)> progress_of(const AutoOverlapOptions& options) {
  if (!options.on_progress) {
    return {};
  }
  return [progress = AutoOverlapProgress{.at_most = options.max_trials},
          &options](const OverlapTrial& trial) mutable {
    ++progress.trials;
    progress.at_most = std::max(progress.at_most, progress.trials);
    if (trial.fits && (progress.best_ns == 0 || trial.figures.step_ns < progress.best_ns)) {
      progress.best_ns = trial.figures.step_ns;
    }
    options.on_progress(progress);
  };
}

}  // namespace

bool wants_auto_overlap(const RunConfig& config) {
  return is_in_mode(config.overlap, OverlapMode::kAuto) && !config.overlap.cost.empty();
}

AutoOverlap auto_overlap(const RunSpec& run, const CostModel& model,
                         const AutoOverlapOptions& options) {
  const RunConfig& config = run.config;
  OverlapTrials::Options settings = trial_options(model, options);
  OverlapTrials as_run(run, model, options_as_run(config.parallel, settings));
  const PlannedRanks whole_planned = planned_for_finalists(config.parallel);
  settings.planned = whole_planned;
  OverlapTrials whole(run, model, settings);
  settings.planned = PlannedRanks::kOnePerStage;
  const StepSize size =
      step_size(resolve_again(run, whole.with(switched_off(config.overlap))), model);
  settings.on_trial = progress_of(options);
  OverlapTrials trials(
      resolve_again(run, searched_run(config, size, settings.memory_bytes, options)), model,
      settings);
  const RunConfig& searched = trials.spec().config;
  AutoOverlap found{
      .run = run,
      .num_microbatches = run.num_microbatches,
      .searched_microbatches = trials.spec().num_microbatches,
      .num_layers = size.layers.size(),
      .searched_layers = searched_layers(searched, config, size, options),
  };
  OverlapSearch search(config, trials,
                       {.layers_of_job = size.layers_of_job,
                        .num_microbatches = found.num_microbatches,
                        .copy_engines = has_copy_engines(model)},
                       options);
  search.run();
  // The searched run may already be the whole step.
  OverlapTrials& finals = searched == config && whole_planned == settings.planned ? trials : whole;
  std::vector<const OverlapTrial*> ends = finals.run(finalists(trials, config));
  const OverlapTrial* chosen = best_of(ends, config.overlap);
  if (found.searched_layers < found.num_layers && may_keep_units_whole(config)) {
    std::ranges::copy(finals.run(other_whole_units(chosen->overlap)), std::back_inserter(ends));
    chosen = best_of(ends, config.overlap);
  }
  if (!chosen->simulated) {
    throw_config_error("overlap.mode = \"auto\": no setting can be simulated: {}", chosen->why_not);
  }
  // What is promised is what `braid simulate` and the run have, and nothing slower than these two.
  const std::vector<const OverlapTrial*> compared =
      as_run.run({ends[0]->overlap, ends[1]->overlap, chosen->overlap});
  chosen = best_of(compared, config.overlap);
  found.off = compared[0]->figures;
  found.defaults = compared[1]->figures;
  found.chosen = chosen->figures;
  found.fits = chosen->fits;
  found.run = resolve_again(run, whole.with(chosen->overlap));
  found.reasons = search.reasons(chosen->overlap);
  found.trials.assign(trials.all().begin(), trials.all().end());
  found.num_whole_trials = static_cast<int64_t>(ends.size());
  found.communication = explain_communication(found.run, model, planned_as_run(config.parallel));
  return found;
}

std::string summarize(const AutoOverlap& found, double search_s) {
  return fmt::format(
      "auto overlap: {} settings tried{}, step {} instead of {} (off) and {} (defaults)",
      found.trials.size(), search_s > 0 ? " in " + format_duration(search_s) : "",
      step_text(found.chosen), step_text(found.off), step_text(found.defaults));
}

std::string describe(const AutoOverlap& found, double search_s) {
  std::string text = summarize(found, search_s) + "\n";
  std::vector<std::string> fewer;
  if (found.searched_microbatches < found.num_microbatches) {
    fewer.push_back(fmt::format("{} microbatches instead of {}", found.searched_microbatches,
                                found.num_microbatches));
  }
  if (found.searched_layers < found.num_layers) {
    fewer.push_back(
        fmt::format("{} layers instead of {}", found.searched_layers, found.num_layers));
  }
  if (!fewer.empty()) {
    text +=
        fmt::format("auto     searched with {} (steps below); then tried {} settings with all\n",
                    join(fewer, " and "), found.num_whole_trials);
  }
  text += fmt::format("auto     memory {} instead of {} (off) and {} (defaults){}\n",
                      format_bytes(found.chosen.needed_bytes), format_bytes(found.off.needed_bytes),
                      format_bytes(found.defaults.needed_bytes),
                      found.fits ? "" : ": no setting fits; this one needs the least");
  text += fmt::format("auto     exposed {:.1f}% of the step instead of {:.1f}% and {:.1f}%\n",
                      100 * found.chosen.exposed, 100 * found.off.exposed,
                      100 * found.defaults.exposed);
  text += fmt::format(
      "auto     compute takes {:.1f}% of the step on the busiest rank, which no overlap shortens\n",
      100 * found.chosen.most_compute);
  for (const std::string& reason : found.reasons) {
    text += fmt::format("auto     {}\n", reason);
  }
  for (const std::string& sentence : found.communication) {
    text += fmt::format("auto     {}\n", sentence);
  }
  return text;
}

}  // namespace braid
