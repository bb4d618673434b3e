#include "tune/search_layouts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <tuple>

#include "base/errors.h"
#include "base/parallel_for.h"
#include "base/text.h"
#include "config/mistakes.h"
#include "config/validate.h"
#include "plan/memory_needs.h"
#include "plan/model_setup.h"
#include "plan/more_room.h"
#include "plan/run_spec.h"
#include "tune/estimate_layout.h"
#include "tune/layer_prices.h"

namespace braid {
namespace {

/// Memory estimates may be too high by this factor. Layouts above it are not planned.
constexpr double kMemorySlack = 1.1;
/// The same for the first layouts, so that hardly any is simulated in vain.
constexpr double kFirstMemorySlack = 0.97;
/// The same for the very first layouts, of which one must fit.
constexpr double kSureMemorySlack = 0.85;
/// They are quick if they take at most so many times as long to simulate as the quickest, or
/// SearchOptions::quick_passes.
constexpr int64_t kQuickFactor = 2;
/// Layouts per batch of estimates, and of simulations. Constants, so that the result does not
/// depend on the number of threads.
constexpr size_t kEstimateBatch = 512;
constexpr size_t kSimulateBatch = 8;
/// Estimates kept per simulated layout.
constexpr size_t kPoolFactor = 10;
/// Layouts of the usual kind that are simulated before all others are priced.
constexpr size_t kFirstSimulated = 8;
constexpr size_t kFirstBatch = 2;
/// Most layouts of one batch with the same tensor, context, pipeline and expert ranks.
constexpr int kMostAlike = 2;

/// The keys on which the prices of layers depend.
using PriceKey = std::tuple<int64_t, int64_t, int64_t, int64_t, std::string_view, std::string_view,
                            std::string_view, bool, DType, DType>;
/// Layouts with an equal key have similar estimation errors.
using MeshKey = std::tuple<int64_t, int64_t, int64_t, int64_t>;

PriceKey price_key(const Layout& layout) {
  return {layout.tensor,
          layout.context,
          layout.expert,
          layout.microbatch,
          choice_name(layout.context_method),
          choice_name(layout.mamba_context),
          choice_name(layout.recompute),
          layout.sequence_parallel,
          layout.moments,
          layout.main_grads};
}

MeshKey mesh_key(const Layout& layout) {
  return {layout.tensor, layout.context, layout.pipeline, layout.expert};
}

struct Candidate {
  const Layout* layout = nullptr;
  const LayerPrices* prices = nullptr;
  LayoutEstimate bounds;
  double estimated_ns = 0;
};

/// A planned layout; simulated if it fits.
struct Trial {
  bool allowed = false;
  bool fits = false;
  std::string refusal;
  RankedLayout result;
};

class Search {
 public:
  Search(const RunConfig& config, int64_t vocabulary, const CostModel& model,
         const SearchOptions& options)
      : config_(config),
        vocabulary_(vocabulary),
        model_(model),
        options_(options),
        spec_(resolve_model(config.model, config.train.sequence, vocabulary)),
        estimator_(config_, spec_, model) {
    const DeviceSpec& device = model.cluster().device;
    search_.memory_bytes = options.memory_bytes;
    if (!search_.memory_bytes && !device.is_host) {
      search_.memory_bytes = device.memory_bytes;
    }
  }

  /// `given`: the configuration with its own layout.
  LayoutSearch run(const RunConfig& given) {
    try_given(given);
    if (search_.given.step_ns > 0 || !search_.given.refusal.empty()) {
      told_ns_ = search_.ranked.empty() ? 0 : search_.given.step_ns;
      tell();
    }
    space_ = enumerate_layouts(config_, spec_, model_.cluster(), options_.limits);
    search_.counts.looked_at = static_cast<int64_t>(space_.layouts.size()) + space_.num_refused;
    search_.counts.refused = space_.num_refused + num_tried_refused_;
    find_given();
    const auto wanted = static_cast<size_t>(options_.num_simulated);
    search_part([](const Layout& layout) { return is_usual(layout); },
                {.num_ranked = std::min(kFirstSimulated, wanted),
                 .batch_size = kFirstBatch,
                 .memory_slack = kFirstMemorySlack});
    forget_untried();
    search_part([](const Layout&) { return true; },
                {.num_ranked = wanted, .batch_size = kSimulateBatch, .memory_slack = kMemorySlack});
    finish();
    return std::move(search_);
  }

 private:
  /// Tries the run file's own layout, unless it is far too big by the estimate.
  void try_given(RunConfig given) {
    if (is_stopped()) {
      return;
    }
    if (!options_.limits.fixed.contains("parallel.data")) {
      given.parallel.data = 0;  // as many as there are ranks for
    }
    search_.given.layout = layout_of(given);
    try {
      validate(given);
      given = resolved(given);
      choose_recompute(given);
      given_ = layout_of(given);
      const Candidate candidate = priced(given_);
      search_.given.layout = given_;
      search_.given.estimated_ns = candidate.estimated_ns;
      search_.given.needed_bytes = std::llround(candidate.bounds.peak_bytes);
      tell();
      if (candidate.bounds.peak_bytes <= kMemorySlack * memory_limit()) {
        learn_given(candidate, try_config(candidate, given));
      }
    } catch (const ConfigError& error) {
      search_.given.refusal = error.what();
    }
  }

  /// The least recompute that fits by the estimate, if the run leaves it to braid.
  void choose_recompute(RunConfig& given) {
    if (given.memory.recompute != choice_name(RecomputeChoice::kAuto)) {
      return;
    }
    for (const RecomputeChoice policy : recompute_policies(given.parallel)) {
      given.memory.recompute = choice_name(policy);
      if (priced(layout_of(given)).bounds.peak_bytes <= memory_limit()) {
        return;
      }
    }
  }

  /// Prices a layout alone. Throws ConfigError if a rule forbids it.
  Candidate priced(const Layout& layout) {
    const PriceKey key = price_key(layout);
    if (!prices_.contains(key)) {
      prices_.emplace(key, price_layers(config_, spec_, vocabulary_, layout, model_));
    }
    Candidate candidate{.layout = &layout, .prices = &prices_.at(key)};
    candidate.bounds = estimator_.bounds(layout, *candidate.prices);
    candidate.estimated_ns = estimator_.step_ns(layout, *candidate.prices);
    return candidate;
  }

  void learn_given(const Candidate& candidate, Trial trial) {
    GivenLayout& given = search_.given;
    trial.result.is_given = true;
    given.refusal = trial.refusal;
    given.fits = trial.fits;
    if (trial.allowed) {
      given.needed_bytes = trial.result.needed_bytes;
      given.step_ns = trial.result.step_ns;
    }
    given_config_ = trial.result.config;
    learn(candidate, std::move(trial));
  }

  void tell() {
    if (options_.on_found) {
      options_.on_found(search_);
    }
  }

  /// Counts the run file's own layout, and leaves it out of the space, unless the space's has other
  /// stages.
  void find_given() {
    if (!tried_.contains(&given_)) {
      return;
    }
    for (const Layout& layout : space_.layouts) {
      if (layout == given_ && resolved(with_layout(config_, layout)) == given_config_) {
        tried_.insert(&layout);
        return;
      }
    }
    ++search_.counts.looked_at;
  }

  struct PartOptions {
    size_t num_ranked = 0;  ///< simulated layouts at which the part ends
    size_t batch_size = 0;  ///< of simulations
    double memory_slack = 1;
  };

  /// Searches the layouts for which `is_meant` and that are not tried yet.
  void search_part(const std::function<bool(const Layout&)>& is_meant, const PartOptions& part) {
    std::vector<const Layout*> layouts;
    for (const Layout& layout : space_.layouts) {
      if (is_meant(layout) && !tried_.contains(&layout)) {
        layouts.push_back(&layout);
      }
    }
    price(layouts);
    if (is_stopped()) {
      search_.counts.behind += static_cast<int64_t>(layouts.size());
      return;
    }
    bound(layouts, part.memory_slack);
    estimate();
    simulate_best(part.num_ranked, part.batch_size);
  }

  /// Makes the layouts that were not tried anew for the next part.
  void forget_untried() {
    is_first_part_ = false;
    candidates_.clear();
    search_.counts.behind = 0;
    search_.counts.too_big = num_tried_too_big_;
    search_.counts.refused = space_.num_refused + num_tried_refused_;
  }

  bool is_stopped() const { return options_.stop_requested && options_.stop_requested(); }

  void report(std::string_view part, size_t done, size_t total) {
    if (options_.on_progress) {
      options_.on_progress({part, static_cast<int64_t>(done), static_cast<int64_t>(total)});
    }
  }

  /// `parallel_for` with progress reports.
  void for_each(std::string_view part, size_t count, size_t before, size_t total,
                const std::function<void(size_t)>& work) {
    size_t done = before;
    std::mutex mutex;
    parallel_for(count, options_.num_threads, [&](size_t index) {
      if (is_stopped()) {
        return;
      }
      work(index);
      const std::lock_guard lock(mutex);
      report(part, ++done, total);
    });
  }

  double memory_limit() const {
    return search_.memory_bytes ? static_cast<double>(*search_.memory_bytes)
                                : std::numeric_limits<double>::infinity();
  }

  void price(const std::vector<const Layout*>& layouts) {
    std::map<PriceKey, const Layout*> first;
    for (const Layout* const layout : layouts) {
      const PriceKey key = price_key(*layout);
      if (!prices_.contains(key)) {
        first.emplace(key, layout);
      }
    }
    std::vector<std::pair<PriceKey, const Layout*>> keys(first.begin(), first.end());
    std::vector<std::optional<LayerPrices>> prices(keys.size());
    std::vector<std::string> refusals(keys.size());
    for_each("prices", keys.size(), 0, keys.size(), [&](size_t index) {
      try {
        prices[index] = price_layers(config_, spec_, vocabulary_, *keys[index].second, model_);
      } catch (const ConfigError& error) {  // a rule that enumerate_layouts does not know
        refusals[index] = error.what();
      }
    });
    for (size_t i = 0; i < keys.size(); ++i) {
      if (prices[i]) {
        prices_.emplace(keys[i].first, *prices[i]);
      } else if (!refusals[i].empty()) {
        refusal_ = refusals[i];
      }
    }
  }

  /// Whether the next policy with less recompute has the same prices: then the programs are the
  /// same, as with "attention" and "norms" if context ranks exchange keys, which no task repeats.
  bool repeats_no_more(Layout layout, const LayerPrices& prices) const {
    const auto policies = recompute_policies(layout, config_.parallel.expert_tensor);
    const auto at = std::ranges::find(policies, layout.recompute);
    if (at == policies.begin() || at == policies.end()) {
      return false;
    }
    layout.recompute = *(at - 1);
    const auto with_less = prices_.find(price_key(layout));
    return with_less != prices_.end() && with_less->second == prices;
  }

  void bound(const std::vector<const Layout*>& layouts, double memory_slack) {
    for (const Layout* const layout : layouts) {
      const auto prices = prices_.find(price_key(*layout));
      if (prices != prices_.end() && repeats_no_more(*layout, prices->second)) {
        ++search_.counts.behind;
      } else if (prices != prices_.end()) {
        candidates_.push_back({.layout = layout, .prices = &prices->second});
      } else {
        ++search_.counts.refused;
      }
    }
    if (candidates_.empty()) {
      return;
    }
    parallel_for(candidates_.size(), options_.num_threads, [&](size_t index) {
      Candidate& it = candidates_[index];
      it.bounds = estimator_.bounds(*it.layout, *it.prices);
    });
    const Candidate& smallest = *std::ranges::min_element(
        candidates_, {}, [](const Candidate& it) { return it.bounds.peak_bytes; });
    if (smallest_.layout == nullptr || smallest.bounds.peak_bytes < smallest_.bounds.peak_bytes) {
      smallest_ = smallest;
    }
    const size_t all = candidates_.size();
    std::erase_if(candidates_, [&](const Candidate& it) {
      return it.bounds.peak_bytes > memory_slack * memory_limit();
    });
    search_.counts.too_big += static_cast<int64_t>(all - candidates_.size());
  }

  [[noreturn]] void throw_no_layout() const {
    throw_config_error(
        "no layout of {} ranks is allowed with model.layers = {}, model.heads = {}, "
        "train.global_batch = {} and train.sequence = {}{}; {}set another train.global_batch or "
        "number of ranks",
        config_.parallel.ranks, spec_.layers.size(), spec_.heads, config_.train.global_batch,
        config_.train.sequence, refusal_.empty() ? "" : fmt::format(" ({})", refusal_),
        options_.limits.fixed.empty() ? "" : "fix fewer keys, or ");
  }

  /// Estimates candidates, lowest bound first, until no bound is below the pool's worst estimate.
  void estimate() {
    std::ranges::stable_sort(candidates_, {},
                             [](const Candidate& it) { return it.bounds.least_ns; });
    const size_t pool = kPoolFactor * static_cast<size_t>(options_.num_simulated);
    std::vector<double> best;                                   // the pool's estimates, ascending
    double worst_ns = std::numeric_limits<double>::infinity();  // of them, once the pool is full
    size_t done = 0;
    while (done < candidates_.size() && candidates_[done].bounds.least_ns < worst_ns &&
           !is_stopped()) {
      const size_t count = std::min(kEstimateBatch, candidates_.size() - done);
      parallel_for(count, options_.num_threads, [&](size_t index) {
        Candidate& it = candidates_[done + index];
        it.estimated_ns = estimator_.step_ns(*it.layout, *it.prices);
      });
      for (size_t i = done; i < done + count; ++i) {
        best.push_back(candidates_[i].estimated_ns);
      }
      std::ranges::sort(best);
      if (best.size() >= pool) {
        best.resize(pool);
        worst_ns = best.back();
      }
      done += count;
      report("estimates", done, candidates_.size());
    }
    search_.counts.behind += static_cast<int64_t>(candidates_.size() - done);
    candidates_.resize(done);  // more than the pool: many may not fit when planned
  }

  /// Errors of the estimates of similar layouts. Time: the smallest factor, so that the best of
  /// them counts. Memory: the largest factor.
  struct Errors {
    double time = 0;
    double memory = 0;
  };

  double expected_ns(const Candidate& it) const {
    const auto found = errors_.find(mesh_key(*it.layout));
    return it.estimated_ns *
           (found != errors_.end() && found->second.time > 0 ? found->second.time : least_error_);
  }

  bool will_fit(const Candidate& it) const {
    if (is_first_part_ && it.bounds.peak_bytes * most_memory_error_ > memory_limit()) {
      return false;  // the next part may try it
    }
    const auto found = errors_.find(mesh_key(*it.layout));
    return found == errors_.end() ||
           it.bounds.peak_bytes * std::min(found->second.memory, 1.0) <= memory_limit();
  }

  bool surely_fits(const Candidate& it) const {
    return it.bounds.peak_bytes * most_memory_error_ <= kSureMemorySlack * memory_limit();
  }

  /// Passes of one microbatch over one layer. The time of a simulation with one rank per stage is
  /// about proportional to them.
  int64_t num_passes(const Layout& layout) const {
    return schedule_of(config_, layout).num_microbatches * spec_.layers.size();
  }

  /// While there is no answer, a quick one is better than the best: the most passes of the layouts
  /// to simulate. Nothing, if there is an answer or none surely fits.
  std::optional<int64_t> most_passes() const {
    std::optional<int64_t> fewest;
    for (const Candidate& it : candidates_) {
      if (search_.ranked.empty() && surely_fits(it)) {
        fewest = std::min(fewest.value_or(num_passes(*it.layout)), num_passes(*it.layout));
      }
    }
    return fewest ? std::optional(std::max(kQuickFactor * *fewest, options_.quick_passes))
                  : std::nullopt;
  }

  /// Removes the next batch to simulate from the candidates and returns it.
  std::vector<Candidate> next_batch(size_t most) {
    std::ranges::stable_sort(candidates_, {},
                             [this](const Candidate& it) { return expected_ns(it); });
    const std::optional<int64_t> quick = is_first_part_ ? most_passes() : std::nullopt;
    std::map<MeshKey, int> alike;
    std::vector<Candidate> batch;
    std::erase_if(candidates_, [&](const Candidate& it) {
      const bool waits = quick && !(surely_fits(it) && num_passes(*it.layout) <= *quick);
      if (waits || batch.size() == most || alike[mesh_key(*it.layout)] == kMostAlike) {
        return false;
      }
      ++alike[mesh_key(*it.layout)];
      batch.push_back(it);
      return true;
    });
    return batch;
  }

  void simulate_best(size_t wanted, size_t batch_size) {
    while (search_.ranked.size() < wanted && !candidates_.empty() && !is_stopped()) {
      const size_t all = candidates_.size();
      std::erase_if(candidates_, [this](const Candidate& it) { return !will_fit(it); });
      search_.counts.too_big += static_cast<int64_t>(all - candidates_.size());
      const std::vector<Candidate> batch =
          next_batch(std::min(batch_size, wanted - search_.ranked.size()));
      std::vector<std::optional<Trial>> trials(batch.size());
      for_each("simulated steps", batch.size(), search_.ranked.size(), wanted,
               [&](size_t index) { trials[index] = try_layout(batch[index]); });
      for (size_t i = 0; i < batch.size(); ++i) {
        if (trials[i]) {
          learn(batch[i], std::move(*trials[i]));
        } else {
          ++search_.counts.behind;  // stopped before it
        }
      }
      tell_found();
    }
  }

  /// Reports what is found if it has a faster layout than before.
  void tell_found() {
    std::ranges::stable_sort(search_.ranked, {}, &RankedLayout::step_ns);
    if (!search_.ranked.empty() && (told_ns_ == 0 || search_.ranked.front().step_ns < told_ns_)) {
      told_ns_ = search_.ranked.front().step_ns;
      tell();
    }
  }

  Trial try_layout(const Candidate& candidate) const {
    return try_config(candidate, with_layout(config_, *candidate.layout));
  }

  /// `config` has the candidate's layout.
  Trial try_config(const Candidate& candidate, RunConfig config) const {
    Trial trial;
    RankedLayout& result = trial.result;
    result.layout = *candidate.layout;
    result.estimated_ns = candidate.estimated_ns;
    result.estimated_bytes = candidate.bounds.peak_bytes;
    try {
      validate(config);
      result.config = resolved(std::move(config));
      const SimulatedRun run(resolve_run(result.config, vocabulary_), model_, {},
                             PlannedRanks::kOnePerStage);
      take_figures(run, result);
    } catch (const ConfigError& error) {
      trial.refusal = mistakes_of(error).front();
      return trial;
    }
    trial.allowed = true;
    trial.fits = static_cast<double>(result.needed_bytes) <= memory_limit();
    return trial;
  }

  void take_figures(const SimulatedRun& run, RankedLayout& result) const {
    const DeviceSpec& device = model_.cluster().device;
    result.step_ns = run.step_ns();
    result.tokens_per_s_per_rank =
        run.tokens_per_s() / static_cast<double>(run.spec().mesh.num_ranks());
    result.power_w = device.power_w;
    result.mfu = run.mfu();
    result.means = run.means();
    for (const RankPlan& rank : run.plan().ranks) {
      result.needed_bytes =
          std::max(result.needed_bytes, rank_bytes(device, rank, result.config.runtime.repeatable));
    }
  }

  void learn(const Candidate& candidate, Trial trial) {
    tried_.insert(candidate.layout);
    if (!trial.allowed) {
      ++search_.counts.refused;
      ++num_tried_refused_;
      refusal_ = trial.refusal;
      return;
    }
    Errors& errors = errors_[mesh_key(*candidate.layout)];
    const double memory =
        static_cast<double>(trial.result.needed_bytes) / candidate.bounds.peak_bytes;
    errors.memory = std::max(errors.memory, memory);
    most_memory_error_ = std::max(most_memory_error_, memory);
    if (!trial.fits) {
      ++search_.counts.too_big;
      ++num_tried_too_big_;
      if (nearest_bytes_ == 0 || trial.result.needed_bytes < nearest_bytes_) {
        nearest_bytes_ = trial.result.needed_bytes;
        nearest_ = trial.result.layout;
      }
      return;
    }
    const double time =
        static_cast<double>(trial.result.step_ns) / std::max(candidate.estimated_ns, 1.0);
    errors.time = errors.time == 0 ? time : std::min(errors.time, time);
    least_error_ = search_.ranked.empty() ? time : std::min(least_error_, time);
    search_.ranked.push_back(std::move(trial.result));
  }

  void finish() {
    search_.was_stopped = is_stopped();
    if (search_.ranked.empty() && search_.was_stopped) {
      throw_config_error("the search was stopped before a layout was simulated");
    }
    if (search_.ranked.empty() && search_.counts.too_big == 0) {
      throw_no_layout();
    }
    if (search_.ranked.empty()) {
      const bool planned = nearest_bytes_ > 0;
      const bool has_room = spec_.layers.has(kMoeBlock) && could_have_less_room(config_.moe);
      throw_config_error(
          "no layout of {} ranks fits {} of memory; {} comes nearest with {}{}; use {}more or "
          "larger devices, a smaller train.sequence, or memory.offload_layers",
          config_.parallel.ranks, format_bytes(search_.memory_bytes.value_or(0)),
          layout_name(planned ? nearest_ : *smallest_.layout), planned ? "" : "about ",
          format_bytes(planned ? nearest_bytes_
                               : static_cast<int64_t>(smallest_.bounds.peak_bytes)),
          has_room ? fmt::format("moe.capacity = {}, ", kUsualCapacity) : "");
    }
    std::ranges::stable_sort(search_.ranked, {}, &RankedLayout::step_ns);
    search_.counts.simulated = static_cast<int64_t>(search_.ranked.size());
    search_.counts.behind += static_cast<int64_t>(candidates_.size());
  }

  const RunConfig config_;
  int64_t vocabulary_;
  const CostModel& model_;
  const SearchOptions& options_;
  ModelSpec spec_;
  LayoutEstimator estimator_;
  LayoutSpace space_;
  std::map<PriceKey, LayerPrices> prices_;
  Layout given_;                   // the run file's own
  RunConfig given_config_;         // with it, if it was tried
  std::set<const Layout*> tried_;  // planned, of the space, or the run file's own
  int64_t num_tried_too_big_ = 0;
  int64_t num_tried_refused_ = 0;
  int64_t told_ns_ = 0;  // the fastest step that on_found was told
  std::vector<Candidate> candidates_;
  std::map<MeshKey, Errors> errors_;
  double least_error_ = 1;
  double most_memory_error_ = 1;  // of any layout
  bool is_first_part_ = true;     // which looks for any layout that fits
  Candidate smallest_;
  Layout nearest_;
  int64_t nearest_bytes_ = 0;
  std::string refusal_;  // of a layout forbidden by another rule
  LayoutSearch search_;
};

/// Removes keys that only make sense with the layout in the run file.
RunConfig without_layout(RunConfig config, const LayoutLimits& limits) {
  const ParallelConfig defaults;
  ParallelConfig& parallel = config.parallel;
  const auto clear = [&](std::string_view key, auto& value, const auto& neutral) {
    if (!limits.fixed.contains(key)) {
      value = neutral;
    }
  };
  clear("parallel.data", parallel.data, defaults.data);
  clear("parallel.microbatch_group_size", parallel.microbatch_group_size, 0);
  clear("parallel.pipeline_layout", parallel.pipeline_layout, std::string());
  clear("parallel.first_stage_layers", parallel.first_stage_layers, 0);
  clear("parallel.last_stage_layers", parallel.last_stage_layers, 0);
  clear("parallel.context_inner", parallel.context_inner, 0);
  clear("parallel.shard_replicas", parallel.shard_replicas, 1);
  return config;
}

}  // namespace

LayoutSearch search_layouts(const RunConfig& config, int64_t vocabulary, const CostModel& model,
                            const SearchOptions& options) {
  return Search(without_layout(config, options.limits), vocabulary, model, options).run(config);
}

}  // namespace braid
