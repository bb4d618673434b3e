#include "passes/schedule/schedule_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "config/choices.h"
#include "memory/quick_plan.h"
#include "passes/all_ranks.h"
#include "passes/overlap_axis.h"
#include "passes/schedule/engine_choice.h"
#include "passes/schedule/microbatch_pairs.h"
#include "passes/schedule/order_figures.h"
#include "passes/schedule/step_change.h"
#include "passes/streams/comm_engine.h"
#include "sim/list_schedule.h"
#include "sim/simulate.h"

namespace braid {
namespace {

/// The value of overlap.comm_engine that leaves the choice to `choose_engines`.
constexpr std::string_view kHiddenCopies = "hidden";

constexpr VerifyRanksOptions kOneOrder{.one_order_of_collectives = true,
                                       .one_order_of_messages = true};

/// With more tasks than this in all programs together, each order takes tenths of a second or more.
constexpr size_t kManyTasks = 20'000;

/// How much slower than the fastest an order may be if it needs less memory, as a fraction of the
/// step.
constexpr double kWorthMemory = 0.005;

/// How often orders that do not fit are tried again with less memory.
constexpr int kMaxRetries = 3;

RankPrograms with_programs(const RankPrograms& ranks, std::span<const Program> programs) {
  RankPrograms result = ranks;
  for (size_t i = 0; i < programs.size(); ++i) {
    result.programs[i] = &programs[i];
  }
  return result;
}

/// An order of the leading ranks that was tried. All vectors here are by leading rank.
struct Candidate {
  std::vector<Program> programs;
  std::vector<StepChange> changes;  // that lead from the current programs to these
  MovedWgrads moved;
  int64_t num_copied = 0;  // communications that use copy engines
  int64_t step_ns = 0;
  size_t way = 0;  // index of the way to fill waits

  int64_t num_changes() const { return moved.num_moved + num_copied; }
};

/// Finds the fastest step for all ranks.
class StepScheduler {
 public:
  StepScheduler(AllRanks& all, const WholeStepOptions& options, const CostModel& model)
      : all_(all),
        model_(model),
        orders_(options.orders),
        chooses_engines_(options.chooses_engines),
        ranks_(all.leading) {
    is_one_order_ = verify_ranks(ranks_, kOneOrder).empty();
    const SimResult before = simulate(ranks_, model);
    before_ns_ = before.step_ns;
    spec_ns_ = measured_spec_ns(ranks_, before);
    for (const PlannedStep& rank : leaders()) {
      room_bytes_.push_back(std::max(rank.memory->step_bytes,
                                     model.cluster().device.memory_bytes - rank.beside_bytes));
      num_tasks_ += rank.programs->front().tasks.size();
    }
  }

  PassReport run() {
    find_starts();
    std::vector<std::vector<int64_t>> level_limits = limits();
    std::vector<std::optional<Candidate>> levels(level_limits.size());
    for (size_t level = levels.size(); level-- > 0;) {
      levels[level] = best_within(level_limits[level]);
      if (num_tasks_ > kManyTasks && levels[level]) {
        ways_ = {levels[level]->way};
      }
    }
    int num_retries = 0;
    while (const std::optional<size_t> level = best_level(levels)) {
      std::vector<MemoryPlan> memory = memory_of(levels[*level]->programs);
      if (fits(memory)) {
        PassReport report{true, levels[*level]->num_changes(), describe(*levels[*level], memory)};
        keep(std::move(*levels[*level]), std::move(memory));
        return report;
      }
      levels[*level].reset();
      if (orders_ && num_retries++ < kMaxRetries) {
        lower(level_limits[*level], memory);
        levels[*level] = best_within(level_limits[*level]);
      }
    }
    return {false, 0,
            fmt::format("no {} is faster than {}",
                        !orders_           ? "choice of copy engines"
                        : chooses_engines_ ? "order, and no choice of copy engines,"
                                           : "order",
                        format_step(before_ns_))};
  }

 private:
  static constexpr size_t kNumWays = 5;

  std::span<const PlannedStep> leaders() const {
    return std::span(all_.planned).first(all_.leading.programs.size());
  }

  /// Adds the host's overhead.
  std::string format_step(int64_t tasks_ns) const {
    const double ns = static_cast<double>(tasks_ns + model_.step_overhead_ns());
    return ns >= 1e9 ? fmt::format("{:.3f} s", ns * 1e-9) : fmt::format("{:.4g} ms", ns * 1e-6);
  }

  /// Limits of live bytes: as now, a quarter more, all that is available.
  std::vector<std::vector<int64_t>> limits() const {
    if (!orders_) {
      return {{}};
    }
    std::vector<std::vector<int64_t>> levels(3);
    for (size_t i = 0; i < leaders().size(); ++i) {
      const int64_t now = leaders()[i].memory->programs.front().max_live_bytes;
      const int64_t room = std::max(now, room_bytes_[i]);
      levels[0].push_back(now);
      levels[1].push_back(std::min(room, now + now / 4));
      levels[2].push_back(room);
    }
    return levels;
  }

  struct Way {
    ListScheduleOptions options;
    bool is_measured = true;  ///< durations come from a simulation of the current plan
  };

  /// Programs to order, with durations as measured and as each task takes alone.
  struct Start {
    RankPrograms ranks;
    std::vector<StepChange> changes;  // that lead from the current programs to these
    ListScheduler measured;
    ListScheduler alone;

    Start(const RankPrograms& programs, std::vector<StepChange> before, const CostModel& model,
          const SpecTimes& spec_ns)
        : ranks(programs),
          changes(std::move(before)),
          measured(ranks, model, spec_ns),
          alone(ranks, model) {}
  };

  static std::array<Way, kNumWays> ways_to_fill(const std::vector<int64_t>& limit) {
    const Way base{.options = {.live_bytes_limit = limit, .least_hidden_part = 0}};
    std::array<Way, kNumWays> ways;
    ways.fill(base);
    ways[1].options.wgrads_first = true;
    ways[2].options.lookahead_jobs = 0;
    ways[3].options.lookahead_jobs = 2;
    ways[3].options.least_hidden_part = 0.5;
    ways[4].options.lookahead_jobs = 2;
    ways[4].options.wgrads_first = true;
    ways[4].is_measured = false;
    return ways;
  }

  void find_starts() {
    if (!orders_) {
      return;
    }
    pair_microbatches();
    starts_.push_back(std::make_unique<Start>(ranks_, std::vector<StepChange>(), model_, spec_ns_));
    if (!paired_.empty()) {
      starts_.push_back(std::make_unique<Start>(with_programs(ranks_, paired_),
                                                std::vector{pairing_}, model_, spec_ns_));
    }
  }

  std::optional<Candidate> best_within(const std::vector<int64_t>& limit) const {
    const std::array<Way, kNumWays> all = ways_to_fill(limit);
    std::optional<Candidate> best;
    for (const size_t way : ways_) {
      for (const std::unique_ptr<Start>& start : starts_) {
        const ListScheduler& scheduler = all[way].is_measured ? start->measured : start->alone;
        std::optional<Candidate> candidate =
            ordered(start->ranks, start->changes, scheduler.run(all[way].options));
        if (candidate && candidate->step_ns < (best ? best->step_ns : before_ns_)) {
          best = std::move(candidate);
          best->way = way;
        }
      }
    }
    return chooses_engines_ ? with_engines_of(std::move(best), all) : std::move(best);
  }

  /// Only without a pipeline: a pipeline's schedule decides which jobs are beside each other.
  void pair_microbatches() {
    if (all_.has_pipeline) {
      return;
    }
    for (const Program* const program : ranks_.programs) {
      const std::vector<TaskId> order = microbatches_in_pairs(*program, model_);
      if (order.empty()) {
        paired_.clear();
        return;
      }
      pairing_.orders.push_back(order);
      paired_.push_back(with_change(*program, pairing_, paired_.size()));
    }
    if (!verify_ranks(with_programs(ranks_, paired_), kOneOrder).empty()) {
      paired_.clear();
    }
  }

  /// The programs with their tasks in the order of the schedule.
  std::optional<Candidate> ordered(const RankPrograms& ranks,
                                   const std::vector<StepChange>& changes,
                                   const std::optional<ListSchedule>& schedule) const {
    if (!schedule) {
      return std::nullopt;
    }
    Candidate candidate = changed(changes, ranks, {.orders = schedule->orders, .engines = {}});
    for (size_t i = 0; i < ranks.programs.size(); ++i) {
      count_moved(*ranks.programs[i], schedule->orders[i], candidate.moved);
    }
    return timed(std::move(candidate));
  }

  /// The programs `ranks`, to which `changes` have led, after one more change.
  static Candidate changed(const std::vector<StepChange>& changes, const RankPrograms& ranks,
                           StepChange change) {
    Candidate candidate{.programs = {}, .changes = changes, .moved = {}};
    for (size_t i = 0; i < ranks.programs.size(); ++i) {
      candidate.programs.push_back(with_change(*ranks.programs[i], change, i));
    }
    candidate.changes.push_back(std::move(change));
    return candidate;
  }

  /// Simulates the candidate. nullopt if ranks no longer make their calls in one order.
  std::optional<Candidate> timed(Candidate candidate) const {
    const RankPrograms ranks = with_programs(ranks_, candidate.programs);
    if (is_one_order_ && !verify_ranks(ranks, kOneOrder).empty()) {
      return std::nullopt;
    }
    candidate.step_ns = simulate(ranks, model_).step_ns;
    return candidate;
  }

  /// Returns the fastest of three: `best` (or the current plan if it is empty); `best` with copy
  /// engines for communication it hides; and that reordered once more, because hidden communication
  /// now has other durations.
  std::optional<Candidate> with_engines_of(std::optional<Candidate> best,
                                           const std::array<Way, kNumWays>& ways) const {
    const Candidate as_it_is = best.value_or(Candidate{.programs = {}, .changes = {}, .moved = {}});
    const RankPrograms ranks = with_programs(ranks_, as_it_is.programs);
    const SimResult result = simulate(ranks, model_);
    const auto take_faster = [&](std::optional<Candidate> candidate) {
      if (candidate && candidate->step_ns < (best ? best->step_ns : before_ns_)) {
        best = std::move(candidate);
        return true;
      }
      return false;
    };
    bool is_faster = false;
    for (const LongerCopies longer : {LongerCopies::kWhereExposed, LongerCopies::kEverywhere}) {
      is_faster |=
          take_faster(timed(copied(as_it_is, ranks, engine_choice(ranks, result, model_, longer))));
    }
    if (orders_ && is_faster) {
      const RankPrograms chosen = with_programs(ranks_, best->programs);
      const Way& way = ways[as_it_is.way];
      const SpecTimes spec_ns =
          way.is_measured ? measured_spec_ns(chosen, simulate(chosen, model_)) : SpecTimes();
      std::optional<Candidate> again =
          ordered(chosen, best->changes, ListScheduler(chosen, model_, spec_ns).run(way.options));
      if (again) {
        again->num_copied = best->num_copied;
        again->moved = best->moved;
        again->way = best->way;
      }
      take_faster(std::move(again));
    }
    return best;
  }

  static Candidate copied(const Candidate& from, const RankPrograms& ranks,
                          const std::vector<std::vector<TaskEngine>>& engines) {
    Candidate candidate = changed(from.changes, ranks, {.orders = {}, .engines = engines});
    candidate.moved = from.moved;
    candidate.way = from.way;
    for (const std::vector<TaskEngine>& of_rank : engines) {
      candidate.num_copied += std::ranges::count(of_rank, TaskEngine::kCopy);
    }
    return candidate;
  }

  /// The first level, which needs least memory, among those about as fast as the fastest.
  std::optional<size_t> best_level(const std::vector<std::optional<Candidate>>& levels) const {
    int64_t fastest_ns = before_ns_;
    for (const std::optional<Candidate>& level : levels) {
      fastest_ns = level ? std::min(fastest_ns, level->step_ns) : fastest_ns;
    }
    const auto tolerance_ns = static_cast<int64_t>(kWorthMemory * static_cast<double>(before_ns_));
    for (size_t i = 0; i < levels.size(); ++i) {
      if (levels[i] && levels[i]->step_ns <= fastest_ns + tolerance_ns) {
        return i;
      }
    }
    return std::nullopt;
  }

  /// With quick_memory, plans quickly if that plan fits. The longer search, used for plans that are
  /// kept, finds no larger arenas.
  std::vector<MemoryPlan> memory_of(const std::vector<Program>& programs) const {
    if (all_.quick_memory) {
      std::vector<MemoryPlan> quick = memory_of(programs, plan_memory_quickly);
      if (fits(quick)) {
        return quick;
      }
    }
    return memory_of(programs, plan_memory);
  }

  template <class PlanMemory>
  std::vector<MemoryPlan> memory_of(const std::vector<Program>& programs,
                                    const PlanMemory& plan_memory_of) const {
    std::vector<MemoryPlan> plans;
    for (size_t i = 0; i < programs.size(); ++i) {
      std::vector<const Program*> of_rank;
      for (const Program& program : *leaders()[i].programs) {
        of_rank.push_back(&program);
      }
      of_rank.front() = &programs[i];
      plans.push_back(plan_memory_of(of_rank));
    }
    return plans;
  }

  bool fits(const std::vector<MemoryPlan>& memory) const {
    for (size_t i = 0; i < memory.size(); ++i) {
      if (memory[i].step_bytes > room_bytes_[i]) {
        return false;
      }
    }
    return true;
  }

  /// Arenas take more than the live bytes that the scheduler counts: two tasks on different streams
  /// may use their memory at the same time unless events order them.
  void lower(std::vector<int64_t>& limit, const std::vector<MemoryPlan>& memory) const {
    for (size_t i = 0; i < limit.size(); ++i) {
      if (memory[i].step_bytes > room_bytes_[i]) {
        limit[i] -= memory[i].step_bytes - room_bytes_[i];
      }
    }
  }

  std::string describe(const Candidate& candidate, const std::vector<MemoryPlan>& memory) const {
    int64_t before_bytes = 0;
    int64_t after_bytes = 0;
    for (size_t i = 0; i < memory.size(); ++i) {
      before_bytes = std::max(before_bytes, leaders()[i].memory->peak_bytes());
      after_bytes = std::max(after_bytes, memory[i].peak_bytes());
    }
    std::string text = fmt::format("step {} instead of {}", format_step(candidate.step_ns),
                                   format_step(before_ns_));
    if (orders_) {
      text +=
          fmt::format(", {} of {} weight gradients moved", format_count(candidate.moved.num_moved),
                      format_count(candidate.moved.num_wgrads));
    }
    if (chooses_engines_) {
      text += fmt::format(", copy engines run {} collectives", format_count(candidate.num_copied));
    }
    return text + fmt::format(", memory {} instead of {}", format_bytes(after_bytes),
                              format_bytes(before_bytes));
  }

  void keep(Candidate candidate, std::vector<MemoryPlan> memory) {
    change_followers(all_, candidate.changes);
    for (size_t i = 0; i < memory.size(); ++i) {
      all_.planned[i].programs->front() = std::move(candidate.programs[i]);
      *all_.planned[i].memory = std::move(memory[i]);
    }
  }

  AllRanks& all_;
  const CostModel& model_;
  bool orders_;
  bool chooses_engines_;
  RankPrograms ranks_;
  std::vector<Program> paired_;  // microbatches in pairs; may be empty
  StepChange pairing_;           // that leads to them
  std::vector<std::unique_ptr<Start>> starts_;
  bool is_one_order_ = false;
  int64_t before_ns_ = 0;
  size_t num_tasks_ = 0;
  std::vector<size_t> ways_ = {0, 1, 2, 3, 4};  // ways that are tried
  SpecTimes spec_ns_;
  std::vector<int64_t> room_bytes_;  // for the step
};

bool is_hidden(const OverlapConfig& overlap) {
  return choice<EngineChoice>(overlap.comm_engine) == EngineChoice::kHidden;
}

PassReport list_schedule(AllRanks& all, const WholeStepOptions& options,
                         const PassContext& context) {
  if (!options.orders) {
    return {false, 0, "not asked for"};
  }
  return StepScheduler(all, options, *context.cost_model).run();
}

PassReport choose_engines(AllRanks& all, const WholeStepOptions& options,
                          const PassContext& context) {
  if (!options.chooses_engines || options.orders) {
    return {false, 0, options.orders ? "chosen with the order" : "not asked for"};
  }
  return StepScheduler(all, options, *context.cost_model).run();
}

}  // namespace

Pass list_schedule_pass(const PipelineOptions& options) {
  return {.name = kListSchedule,
          .summary =
              "Orders the tasks of all ranks by their durations, so that weight gradients and "
              "tasks of the next jobs run while a rank waits.",
          .run_all =
              [its_options = options.get<WholeStepOptions>()](AllRanks& all,
                                                              const PassContext& context) {
                return list_schedule(all, its_options, context);
              },
          .only_overlaps = true,
          .needs_costs =
              "overlap.list_schedule = true: needs the durations of tasks, but "
              "overlap.cost is empty; remove the key",
          .keys = {"overlap.list_schedule"},
          .read_keys =
              [](const OverlapConfig& overlap, PipelineOptions& its_options) {
                its_options.of<WholeStepOptions>().orders = overlap.list_schedule;
              },
          .is_wanted = [](const OverlapConfig& overlap) { return overlap.list_schedule; },
          .reads_keys_in_every_mode = true,
          .axes =
              [](const RunConfig&, const AxisLimits&) {
                return std::vector<OverlapAxis>{
                    {"list schedule",
                     {[](OverlapConfig& overlap) { overlap.list_schedule = false; },
                      [](OverlapConfig& overlap) { overlap.list_schedule = true; }},
                     AxisPlace::kWholeStep}};
              }};
}

Pass choose_engines_pass(const PipelineOptions& options) {
  return {
      .name = kChooseEngines,
      .summary = "Moves collectives to copy engines where that makes the simulated step faster.",
      .run_all =
          [its_options = options.get<WholeStepOptions>()](AllRanks& all,
                                                          const PassContext& context) {
            return choose_engines(all, its_options, context);
          },
      .only_overlaps = true,
      .needs_costs =
          "overlap.comm_engine = \"hidden\": needs the durations of tasks, but "
          "overlap.cost is empty; set overlap.comm_engine = \"auto\"",
      .keys = {"overlap.comm_engine"},
      .read_keys =
          [](const OverlapConfig& overlap, PipelineOptions& its_options) {
            its_options.of<WholeStepOptions>().chooses_engines = is_hidden(overlap);
          },
      .is_wanted = is_hidden,
      .reads_keys_in_every_mode = true,
      .axes =
          [](const RunConfig& config, const AxisLimits& limits) {
            std::vector<OverlapAxis> axes;
            if (may_choose_engines(config, limits)) {
              axes.push_back({"engines by the step",
                              {[](OverlapConfig&) {},
                               [](OverlapConfig& overlap) { overlap.comm_engine = kHiddenCopies; }},
                              AxisPlace::kWholeStep});
            }
            return axes;
          }};
}

}  // namespace braid
