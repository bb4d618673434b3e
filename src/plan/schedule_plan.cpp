#include "plan/schedule_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "base/env.h"
#include "base/errors.h"
#include "base/text.h"
#include "ir/verify.h"
#include "memory/quick_plan.h"
#include "passes/insert_events.h"
#include "passes/rearrange.h"
#include "plan/memory_needs.h"
#include "sim/list_schedule.h"
#include "sim/simulate.h"

namespace braid {
namespace {

constexpr VerifyRanksOptions kOneOrder{.one_order_of_collectives = true,
                                       .one_order_of_messages = true};

/// Beyond so many tasks, of all programs, each order takes a second or more.
constexpr size_t kManyTasks = 150'000;

/// How much slower than the fastest an order may be that needs less memory.
constexpr double kWorthMemory = 0.005;

/// Orders that turn out not to fit are tried again so often, with less memory.
constexpr int kMaxRetries = 3;

using Place = std::tuple<int, int, int>;

Place place_of_rank(const Mesh& mesh, int rank) {
  const MeshPosition at = mesh.position(rank);
  return {at.tensor, at.context, at.pipeline};
}

RankPrograms with_programs(const RankPrograms& ranks, std::span<const Program> programs) {
  RankPrograms result = ranks;
  for (size_t i = 0; i < programs.size(); ++i) {
    result.programs[i] = &programs[i];
  }
  return result;
}

/// Mean duration of the tasks of each spec in a simulated step.
std::vector<std::vector<int64_t>> measured_spec_ns(const RankPrograms& ranks,
                                                   const SimResult& result) {
  std::vector<std::vector<int64_t>> sum_ns(ranks.programs.size());
  std::vector<std::vector<int64_t>> num_tasks(ranks.programs.size());
  for (const SimRank& rank : result.ranks) {
    const Program& program = *ranks.programs[rank.program];
    sum_ns[rank.program].resize(program.specs.size());
    num_tasks[rank.program].resize(program.specs.size());
    const auto times = times_of(ranks, result, rank);
    for (size_t i = 0; i < times.size(); ++i) {
      const size_t spec = program.tasks[i].spec.index();
      sum_ns[rank.program][spec] += times[i].end_ns - times[i].start_ns;
      ++num_tasks[rank.program][spec];
    }
  }
  for (size_t program = 0; program < sum_ns.size(); ++program) {
    for (size_t spec = 0; spec < sum_ns[program].size(); ++spec) {
      int64_t& ns = sum_ns[program][spec];
      ns = num_tasks[program][spec] == 0 ? -1 : ns / num_tasks[program][spec];
    }
  }
  return sum_ns;
}

/// Weight gradients by how many other tasks of their stream stand in front of them.
std::vector<uint32_t> places_of_wgrads(const Program& program, std::span<const TaskId> order) {
  std::vector<uint32_t> places(program.tasks.size(), UINT32_MAX);
  uint32_t num_others = 0;
  for (const TaskId task : order) {
    const Task& it = program.tasks[task.index()];
    if (program.streams[it.stream.index()].kind != StreamKind::kCompute) {
      continue;
    }
    if (it.label.phase == Phase::kWgrad) {
      places[task.index()] = num_others;
    } else {
      num_others += program.spec(it).op == "undefine" ? 0 : 1;
    }
  }
  return places;
}

struct Moved {
  int64_t num_moved = 0;
  int64_t num_wgrads = 0;
};

void count_moved(const Program& program, std::span<const TaskId> order, Moved& moved) {
  std::vector<TaskId> as_it_is;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    as_it_is.emplace_back(i);
  }
  const std::vector<uint32_t> before = places_of_wgrads(program, as_it_is);
  const std::vector<uint32_t> after = places_of_wgrads(program, order);
  for (size_t i = 0; i < before.size(); ++i) {
    moved.num_wgrads += before[i] != UINT32_MAX ? 1 : 0;
    moved.num_moved += before[i] != after[i] ? 1 : 0;
  }
}

/// An order of all ranks that has been tried.
struct Candidate {
  std::vector<Program> programs;  // by planned rank
  Moved moved;
  int64_t step_ns = 0;
  size_t way = 0;  // to fill waits
};

class PlanScheduler {
 public:
  PlanScheduler(RunPlan& plan, const RunConfig& config, const CostModel& model, bool verify)
      : plan_(plan), model_(model), verify_(verify), ranks_(rank_programs(plan)) {
    is_one_order_ = verify_ranks(ranks_, kOneOrder).empty();
    const SimResult before = simulate(ranks_, model);
    before_ns_ = before.step_ns;
    spec_ns_ = measured_spec_ns(ranks_, before);
    for (const RankPlan& rank : plan.ranks) {
      const int64_t beside =
          gpu_needs(rank, {.repeatable = config.runtime.repeatable, .with_context = true}).bytes() -
          rank.memory.step_bytes;
      room_bytes_.push_back(
          std::max(rank.memory.step_bytes, model.cluster().device.memory_bytes - beside));
      num_tasks_ += rank.programs[kTrainProgram].tasks.size();
    }
  }

  void run() {
    const auto begin = std::chrono::steady_clock::now();
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
        const std::string summary = describe(*levels[*level], memory);
        keep(std::move(*levels[*level]), std::move(memory));
        note(begin, true, summary);
        return;
      }
      levels[*level].reset();
      if (num_retries++ < kMaxRetries) {
        lower(level_limits[*level], memory);
        levels[*level] = best_within(level_limits[*level]);
      }
    }
    note(begin, false, fmt::format("no order is faster than {}", format_step(before_ns_)));
  }

 private:
  /// With the host's part.
  std::string format_step(int64_t tasks_ns) const {
    const double ns = static_cast<double>(tasks_ns + model_.step_overhead_ns());
    return ns >= 1e9 ? fmt::format("{:.3f} s", ns * 1e-9) : fmt::format("{:.4g} ms", ns * 1e-6);
  }

  /// Live bytes by planned rank: as now, a quarter more, all there is.
  std::vector<std::vector<int64_t>> limits() const {
    std::vector<std::vector<int64_t>> levels(3);
    for (size_t i = 0; i < plan_.ranks.size(); ++i) {
      const int64_t now = plan_.ranks[i].memory.programs[kTrainProgram].max_live_bytes;
      const int64_t room = std::max(now, room_bytes_[i]);
      levels[0].push_back(now);
      levels[1].push_back(std::min(room, now + now / 4));
      levels[2].push_back(room);
    }
    return levels;
  }

  std::vector<ListScheduleOptions> ways_to_fill(const std::vector<int64_t>& limit) const {
    const ListScheduleOptions base{
        .live_bytes_limit = limit, .least_hidden_part = 0, .spec_ns = spec_ns_};
    std::vector<ListScheduleOptions> ways(kNumWays, base);
    ways[1].wgrads_first = true;
    ways[2].lookahead_jobs = 0;
    ways[3].lookahead_jobs = 2;
    ways[3].least_hidden_part = 0.5;
    ways[4].lookahead_jobs = 2;
    ways[4].wgrads_first = true;
    ways[4].spec_ns.clear();
    return ways;
  }

  std::optional<Candidate> best_within(const std::vector<int64_t>& limit) const {
    const std::vector<ListScheduleOptions> all = ways_to_fill(limit);
    std::optional<Candidate> best;
    for (const size_t way : ways_) {
      std::optional<Candidate> candidate = tried(all[way]);
      if (candidate && candidate->step_ns < (best ? best->step_ns : before_ns_)) {
        best = std::move(candidate);
        best->way = way;
      }
    }
    return best;
  }

  std::optional<Candidate> tried(const ListScheduleOptions& options) const {
    const std::optional<ListSchedule> schedule = list_schedule(ranks_, model_, options);
    if (!schedule) {
      return std::nullopt;
    }
    Candidate candidate;
    for (size_t i = 0; i < ranks_.programs.size(); ++i) {
      candidate.programs.push_back(
          insert_events(rearrange(*ranks_.programs[i], schedule->orders[i], {})).program);
      count_moved(*ranks_.programs[i], schedule->orders[i], candidate.moved);
    }
    const RankPrograms ranks = with_programs(ranks_, candidate.programs);
    if (is_one_order_ && !verify_ranks(ranks, kOneOrder).empty()) {
      return std::nullopt;
    }
    candidate.step_ns = simulate(ranks, model_).step_ns;
    return candidate;
  }

  /// The first, which needs least memory, of those that are about as fast as the fastest.
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

  std::vector<MemoryPlan> memory_of(const std::vector<Program>& programs) const {
    std::vector<MemoryPlan> plans;
    for (size_t i = 0; i < programs.size(); ++i) {
      std::vector<const Program*> of_rank;
      for (const Program& program : plan_.ranks[i].programs) {
        of_rank.push_back(&program);
      }
      of_rank[kTrainProgram] = &programs[i];
      plans.push_back(verify_ ? plan_memory(of_rank) : plan_memory_quickly(of_rank));
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

  /// Arenas take more than what the scheduler counts: two tasks of different streams may use their
  /// memory at once unless events order them.
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
      before_bytes = std::max(before_bytes, plan_.ranks[i].memory.peak_bytes());
      after_bytes = std::max(after_bytes, memory[i].peak_bytes());
    }
    return fmt::format(
        "step {} instead of {}, {} of {} weight gradients moved, memory {} instead of {}",
        format_step(candidate.step_ns), format_step(before_ns_),
        format_count(candidate.moved.num_moved), format_count(candidate.moved.num_wgrads),
        format_bytes(after_bytes), format_bytes(before_bytes));
  }

  void keep(Candidate candidate, std::vector<MemoryPlan> memory) {
    for (size_t i = 0; i < plan_.ranks.size(); ++i) {
      if (read_debug_options().verify.value_or(verify_)) {
        verify_or_throw(candidate.programs[i], "list_schedule");
      }
      plan_.ranks[i].programs[kTrainProgram] = std::move(candidate.programs[i]);
      plan_.ranks[i].memory = std::move(memory[i]);
    }
  }

  void note(std::chrono::steady_clock::time_point begin, bool changed, const std::string& summary) {
    const std::chrono::nanoseconds duration = std::chrono::steady_clock::now() - begin;
    for (RankPlan& rank : plan_.ranks) {
      rank.passes.push_back({.name = "list_schedule",
                             .duration_ns = duration.count(),
                             .report = {.changed = changed, .summary = summary}});
    }
  }

  static constexpr size_t kNumWays = 5;

  RunPlan& plan_;
  const CostModel& model_;
  bool verify_;
  RankPrograms ranks_;
  bool is_one_order_ = false;
  int64_t before_ns_ = 0;
  size_t num_tasks_ = 0;
  std::vector<size_t> ways_ = {0, 1, 2, 3, 4};  // that are tried
  std::vector<std::vector<int64_t>> spec_ns_;
  std::vector<int64_t> room_bytes_;  // for the step, by planned rank
};

}  // namespace

RankPrograms rank_programs(const RunPlan& plan, size_t program) {
  RankPrograms result;
  std::map<int, uint32_t> by_rank;
  std::map<Place, uint32_t> by_place;
  std::map<int, uint32_t> by_stage;
  for (uint32_t i = 0; i < plan.ranks.size(); ++i) {
    const Program& it = plan.ranks[i].programs[program];
    result.programs.push_back(&it);
    by_rank.try_emplace(it.rank, i);
    by_place.try_emplace(place_of_rank(plan.mesh, it.rank), i);
    by_stage.try_emplace(plan.mesh.position(it.rank).pipeline, i);
  }
  for (int rank = 0; rank < plan.mesh.num_ranks(); ++rank) {
    const auto exact = by_rank.find(rank);
    const auto alike = by_place.find(place_of_rank(plan.mesh, rank));
    const auto stage = by_stage.find(plan.mesh.position(rank).pipeline);
    check(stage != by_stage.end(), "no rank of the stage of rank {} is planned", rank);
    result.program_of.push_back(exact != by_rank.end()    ? exact->second
                                : alike != by_place.end() ? alike->second
                                                          : stage->second);
  }
  if (by_rank.size() < result.program_of.size()) {
    result.ranks_of_group = [&plan, programs = result.programs, program_of = result.program_of](
                                int rank, GroupId group) {
      const Program& it = *programs[program_of[static_cast<size_t>(rank)]];
      return plan.mesh.group(it.groups[group.index()].name, rank).ranks;
    };
  }
  return result;
}

std::vector<int> ranks_to_schedule(const Mesh& mesh, std::vector<int> ranks) {
  std::set<Place> places;
  for (const int rank : ranks) {
    places.insert(place_of_rank(mesh, rank));
  }
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    if (places.insert(place_of_rank(mesh, rank)).second) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

void schedule_plan(RunPlan& plan, const RunConfig& config, const CostModel& cost_model,
                   bool verify) {
  PlanScheduler(plan, config, cost_model, verify).run();
}

}  // namespace braid
