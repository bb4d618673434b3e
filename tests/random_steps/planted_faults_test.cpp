// Faults planted at random places in the real steps of many layouts, after all passes. Whoever
// checks a run before it starts must catch every one that matters: `verify` races and reads of what
// was never written, `StepMeaning` sound programs that compute something else, `verify_ranks` what
// ranks ask of each other, `verify_plan` memory. A fault that they pass must be harmless, which
// code that shares nothing with them proves: all pairs of tasks, compared one by one.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ir/verify.h"
#include "memory/verify_plan.h"
#include "parallel/verify_ranks.h"
#include "passes/analysis/step_meaning.h"
#include "passes/streams/insert_events.h"
#include "support/random_passes.h"
#include "support/random_step.h"
#include "support/symbolic.h"
#include "support/thinned.h"

namespace braid {
namespace {

/// The programs of a step after all passes, with their memory.
struct PlannedStep {
  ModelSpec model;
  std::vector<Program> programs;
  std::vector<MemoryPlan> plans;
};

PlannedStep planned_step(uint64_t seed) {
  const RandomRun run = random_run(seed);
  RandomPasses random(seed);
  PlannedStep step{.model = run.model, .programs = build_step(run), .plans = {}};
  for (const Pass& pass : rank_passes(default_pipeline(random.options(run.config.memory)))) {
    for (Program& program : step.programs) {
      program = pass.run(std::move(program), {.may_change_rounding = true}).program;
    }
  }
  step.plans = planned_memory(step.programs, /*searches=*/false);
  return step;
}

// ---- the independent judge

/// Happens-before of all pairs by transitive closure, and from it the definition of a race.
class AllPairs {
 public:
  explicit AllPairs(const Program& program) : program_(program) {
    const size_t n = program.tasks.size();
    before_.assign(n, std::vector<bool>(n));
    std::vector<size_t> recorder(program.num_events, n);
    std::vector<size_t> last(program.streams.size(), n);
    for (size_t task = 0; task < n; ++task) {
      const auto follow = [&](size_t earlier) {
        for (size_t i = 0; i < earlier; ++i) {
          before_[task][i] = before_[task][i] || before_[earlier][i];
        }
        before_[task][earlier] = true;
      };
      const Task& it = program.tasks[task];
      if (last[it.stream.index()] != n) {
        follow(last[it.stream.index()]);
      }
      for (const EventId event : program.waits_of(it)) {
        if (recorder[event.index()] != n) {
          follow(recorder[event.index()]);
        }
      }
      last[it.stream.index()] = task;
      if (it.record.valid()) {
        recorder[it.record.index()] = task;
      }
    }
  }

  bool is_before(size_t earlier, size_t later) const { return before_[later][earlier]; }

  bool has_race() const {
    for (size_t later = 0; later < program_.tasks.size(); ++later) {
      for (size_t earlier = 0; earlier < later; ++earlier) {
        if (!is_before(earlier, later) && conflict(earlier, later)) {
          return true;
        }
      }
    }
    return false;
  }

  /// Two step buffers of one memory share bytes, and accesses of both are not ordered.
  bool shares_bytes_at_once(const MemoryPlan& plan) const {
    std::vector<std::vector<size_t>> users(program_.buffers.size());
    for (size_t task = 0; task < program_.tasks.size(); ++task) {
      for (const BufferRange& range : program_.operands_of(program_.tasks[task])) {
        users[range.buffer.index()].push_back(task);
      }
    }
    const std::vector<int64_t>& offsets = plan.programs[0].offset_bytes;
    for (size_t a = 0; a < users.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (overlap_in_memory(a, b, offsets) && !all_before(users[a], users[b]) &&
            !all_before(users[b], users[a])) {
          return true;
        }
      }
    }
    return false;
  }

 private:
  bool conflict(size_t a, size_t b) const {
    const auto of_a = program_.operands_of(program_.tasks[a]);
    const auto of_b = program_.operands_of(program_.tasks[b]);
    const OpSpec& spec_a = program_.spec(program_.tasks[a]);
    const OpSpec& spec_b = program_.spec(program_.tasks[b]);
    for (size_t i = 0; i < of_a.size(); ++i) {
      for (size_t j = 0; j < of_b.size(); ++j) {
        if ((writes(spec_a.operands[i].access) || writes(spec_b.operands[j].access)) &&
            of_a[i].overlaps(of_b[j])) {
          return true;
        }
      }
    }
    return false;
  }

  bool overlap_in_memory(size_t a, size_t b, const std::vector<int64_t>& offsets) const {
    const Buffer& one = program_.buffers[a];
    const Buffer& other = program_.buffers[b];
    return one.lifetime == Lifetime::kStep && other.lifetime == Lifetime::kStep &&
           (one.placement == Placement::kHost) == (other.placement == Placement::kHost) &&
           offsets[a] < offsets[b] + other.size_bytes() &&
           offsets[b] < offsets[a] + one.size_bytes();
  }

  bool all_before(const std::vector<size_t>& earlier, const std::vector<size_t>& later) const {
    return std::ranges::all_of(earlier, [&](size_t from) {
      return std::ranges::all_of(later, [&](size_t to) { return is_before(from, to); });
    });
  }

  const Program& program_;
  std::vector<std::vector<bool>> before_;  // [later][earlier]
};

// ---- faults

/// Plants one fault in one rank; false if it finds no place for it.
using Plant = std::function<bool(PlannedStep&, size_t rank, std::mt19937_64&)>;

std::vector<size_t> tasks_where(const Program& program, const std::function<bool(size_t)>& holds) {
  std::vector<size_t> list;
  for (size_t task = 0; task < program.tasks.size(); ++task) {
    if (holds(task)) {
      list.push_back(task);
    }
  }
  return list;
}

std::optional<size_t> any_task(const Program& program, std::mt19937_64& random,
                               const std::function<bool(size_t)>& holds) {
  const std::vector<size_t> list = tasks_where(program, holds);
  return list.empty() ? std::nullopt : std::optional(list[random() % list.size()]);
}

bool has_op(const Program& program, size_t task, std::initializer_list<std::string_view> ops) {
  return std::ranges::find(ops, program.spec(program.tasks[task]).op) != ops.end();
}

bool communicates_with_others(const Program& program, size_t task) {
  const auto group = group_of(program, program.spec(program.tasks[task]));
  return group && program.groups[group->index()].ranks.size() > 1;
}

/// Exchanges two tasks, each on its stream and with its events.
void exchange(Program& program, size_t a, size_t b) {
  std::swap(program.tasks[a], program.tasks[b]);
}

/// The next task on the same stream.
std::optional<size_t> next_on_stream(const Program& program, size_t task) {
  for (size_t next = task + 1; next < program.tasks.size(); ++next) {
    if (program.tasks[next].stream == program.tasks[task].stream) {
      return next;
    }
  }
  return std::nullopt;
}

bool drop_wait(PlannedStep& step, size_t rank, std::mt19937_64& random) {
  Program& program = step.programs[rank];
  const auto task =
      any_task(program, random, [&](size_t i) { return program.tasks[i].num_waits > 0; });
  if (!task) {
    return false;
  }
  Task& it = program.tasks[*task];
  std::swap(program.waits[it.waits_begin + random() % it.num_waits],
            program.waits[it.waits_begin + it.num_waits - 1]);
  --it.num_waits;
  return true;
}

/// The event is recorded by the task before the one that it is about.
bool record_early(PlannedStep& step, size_t rank, std::mt19937_64& random) {
  Program& program = step.programs[rank];
  const auto task = any_task(program, random, [&](size_t i) {
    const auto next = next_on_stream(program, i);
    return next && program.tasks[*next].record.valid() && !program.tasks[i].record.valid();
  });
  if (!task) {
    return false;
  }
  std::swap(program.tasks[*task].record, program.tasks[*next_on_stream(program, *task)].record);
  return true;
}

bool swap_neighbours(PlannedStep& step, size_t rank, std::mt19937_64& random) {
  Program& program = step.programs[rank];
  const auto task =
      any_task(program, random, [&](size_t i) { return next_on_stream(program, i).has_value(); });
  if (task) {
    exchange(program, *task, *next_on_stream(program, *task));
  }
  return task.has_value();
}

/// An operand one element further on.
bool shift_range(PlannedStep& step, size_t rank, std::mt19937_64& random) {
  Program& program = step.programs[rank];
  const auto room = [&](const BufferRange& range) {
    return program.buffers[range.buffer.index()].num_elems() - (range.end - range.begin);
  };
  std::vector<BufferRange*> parts;
  for (BufferRange& range : program.operands) {
    if (room(range) > 0) {
      parts.push_back(&range);
    }
  }
  if (parts.empty()) {
    return false;
  }
  BufferRange& range = *parts[random() % parts.size()];
  const int64_t shift = range.begin > 0 ? -1 : 1;
  range.begin += shift;
  range.end += shift;
  return true;
}

/// A task of one stream on another, in its place.
bool change_stream(PlannedStep& step, size_t rank, std::mt19937_64& random) {
  Program& program = step.programs[rank];
  if (program.streams.size() < 2) {
    return false;
  }
  Task& task = program.tasks[random() % program.tasks.size()];
  const size_t shift = 1 + random() % (program.streams.size() - 1);
  task.stream = StreamId((task.stream.index() + shift) % program.streams.size());
  return true;
}

/// Memory is handed over a task too early.
bool hand_over_early(PlannedStep& step, size_t rank, std::mt19937_64& random) {
  Program& program = step.programs[rank];
  const auto task = any_task(program, random,
                             [&](size_t i) { return i > 0 && has_op(program, i, {"undefine"}); });
  if (!task) {
    return false;
  }
  const size_t distance = 1 + random() % std::min<size_t>(*task, 6);
  std::rotate(program.tasks.begin() + static_cast<ptrdiff_t>(*task - distance),
              program.tasks.begin() + static_cast<ptrdiff_t>(*task),
              program.tasks.begin() + static_cast<ptrdiff_t>(*task + 1));
  return true;
}

bool drop_task(PlannedStep& step, size_t rank, std::mt19937_64& random) {
  Program& program = step.programs[rank];
  const size_t task = random() % program.tasks.size();
  program.tasks.erase(program.tasks.begin() + static_cast<ptrdiff_t>(task));
  return true;
}

/// Two calls of this rank in different groups, or two messages, in the other order.
bool cross_calls(PlannedStep& step, size_t rank, std::mt19937_64& random,
                 std::initializer_list<std::string_view> ops) {
  Program& program = step.programs[rank];
  const auto next_call = [&](size_t task) -> std::optional<size_t> {
    for (size_t next = task + 1; next < program.tasks.size(); ++next) {
      if (communicates_with_others(program, next) && has_op(program, next, ops)) {
        return next;
      }
    }
    return std::nullopt;
  };
  const auto task = any_task(program, random, [&](size_t i) {
    return communicates_with_others(program, i) && has_op(program, i, ops) && next_call(i);
  });
  if (task) {
    exchange(program, *task, *next_call(*task));
  }
  return task.has_value();
}

bool cross_collectives(PlannedStep& step, size_t rank, std::mt19937_64& random) {
  return cross_calls(step, rank, random,
                     {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring_shift"});
}

bool cross_messages(PlannedStep& step, size_t rank, std::mt19937_64& random) {
  return cross_calls(step, rank, random, {"send", "recv"});
}

bool drop_call(PlannedStep& step, size_t rank, std::mt19937_64& random) {
  Program& program = step.programs[rank];
  const auto task =
      any_task(program, random, [&](size_t i) { return communicates_with_others(program, i); });
  if (task) {
    program.tasks.erase(program.tasks.begin() + static_cast<ptrdiff_t>(*task));
  }
  return task.has_value();
}

/// A step buffer at the place of another one.
bool share_memory(PlannedStep& step, size_t rank, std::mt19937_64& random) {
  const Program& program = step.programs[rank];
  std::vector<size_t> used;
  for (const BufferRange& range : program.operands) {
    const Buffer& buffer = program.buffers[range.buffer.index()];
    if (buffer.lifetime == Lifetime::kStep && buffer.placement == Placement::kDevice) {
      used.push_back(range.buffer.index());
    }
  }
  StepPlan& plan = step.plans[rank].programs[0];
  const size_t a = used.empty() ? 0 : used[random() % used.size()];
  const size_t b = used.empty() ? 0 : used[random() % used.size()];
  const bool fits = plan.offset_bytes[b] + program.buffers[a].size_bytes() <= plan.arena_bytes;
  if (used.empty() || !fits || plan.offset_bytes[a] == plan.offset_bytes[b]) {
    return false;
  }
  plan.offset_bytes[a] = plan.offset_bytes[b];
  return true;
}

struct Fault {
  const char* name;
  Plant plant;
  /// Events and memory follow the wrong order: each rank's program is valid by itself. The fault
  /// shows only in the values that it computes, or in the order in which ranks communicate.
  bool is_sound_alone = false;
};

const std::vector<Fault>& faults() {
  static const std::vector<Fault> list = {
      {"dropped wait", drop_wait},
      {"event recorded a task early", record_early},
      {"neighbours on a stream swapped", swap_neighbours},
      {"range shifted by an element", shift_range},
      {"task on another stream", change_stream},
      {"memory handed over early", hand_over_early},
      {"dropped task", drop_task},
      {"crossed collectives", cross_collectives},
      {"crossed messages", cross_messages},
      {"missing call", drop_call},
      {"buffer at the place of another", share_memory},
      {"swapped, events fit", swap_neighbours, true},
      {"crossed collectives, events fit", cross_collectives, true},
      {"crossed messages, events fit", cross_messages, true},
      {"missing call, events fit", drop_call, true},
  };
  return list;
}

// ---- who catches what

RankPrograms all_of(const PlannedStep& step) {
  return one_program_per_rank(step.programs);
}

/// The first of the checks that refuses the step; empty: all take it.
std::string caught_by(const PlannedStep& good, const PlannedStep& step, size_t rank) {
  const Program& program = step.programs[rank];
  if (!verify(program, 1).empty()) {
    return "verify";
  }
  if (!verify_plan(program, step.plans[rank], 0, 1).empty()) {
    return "verify_plan";
  }
  if (!compare_meaning(StepMeaning(good.programs[rank]), program, StepMeaning(program)).empty()) {
    return "meaning";
  }
  return verify_ranks(
             all_of(step),
             {.max_violations = 1, .one_order_of_collectives = true, .one_order_of_messages = true})
                 .empty()
             ? ""
             : "verify_ranks";
}

/// The rank computes what it did, free of races, and no two buffers have the same bytes at once.
bool is_harmless(const PlannedStep& good, const PlannedStep& step, size_t rank) {
  const Program& program = step.programs[rank];
  const AllPairs order(program);
  return computes_the_same(good.programs[rank], program) && !order.has_race() &&
         !order.shares_bytes_at_once(step.plans[rank]);
}

/// On CPU ranks: nobody waits for ever, and every bit is the same.
bool runs_alike(const PlannedStep& good, const PlannedStep& step) {
  const StepState expected = state_after(good.model, good.programs, good.plans, 1);
  const StepState state = state_after(step.model, step.programs, step.plans, 1);
  return differences(good.programs, expected, state).empty();
}

struct Count {
  int planted = 0;
  int harmless = 0;
  std::map<std::string, int> caught;
};

class PlantedFaults : public testing::Test {
 protected:
  static constexpr int kPlantsPerStep = 4;  // of each kind

  void plant(const PlannedStep& good, uint64_t seed, const Fault& fault, Count& count) {
    std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(&fault - faults().data()));
    for (int i = 0; i < kPlantsPerStep; ++i) {
      PlannedStep step = good;
      const size_t rank = random() % step.programs.size();
      if (!fault.plant(step, rank, random)) {
        continue;
      }
      if (fault.is_sound_alone) {
        step.programs[rank] = insert_events(std::move(step.programs[rank])).program;
        step.plans[rank] = quick_plan(step.programs[rank]);
      }
      ++count.planted;
      const std::string by = caught_by(good, step, rank);
      if (!by.empty()) {
        ++count.caught[by];
        continue;
      }
      ++count.harmless;
      EXPECT_TRUE(is_harmless(good, step, rank) &&
                  (!fault.is_sound_alone || runs_alike(good, step)))
          << "seed " << seed << ", plant " << i << " on rank " << rank << ": " << fault.name
          << " escapes\n  layout " << random_run(seed).words;
    }
  }
};

TEST_F(PlantedFaults, AreCaughtOrHarmless) {
  std::map<std::string, Count> counts;
  std::vector<uint64_t> seeds(60);
  std::iota(seeds.begin(), seeds.end(), uint64_t{5000});
  for (const uint64_t seed : thinned(seeds, 20)) {
    const PlannedStep good = planned_step(seed);
    for (const Fault& fault : faults()) {
      plant(good, seed, fault, counts[fault.name]);
    }
  }
  std::string table = fmt::format("{:<32}{:>8}{:>9}  caught by\n", "fault", "planted", "harmless");
  for (const auto& [name, count] : counts) {
    table += fmt::format("{:<32}{:>8}{:>9} ", name, count.planted, count.harmless);
    int caught = 0;
    for (const auto& [by, number] : count.caught) {
      table += fmt::format(" {} {}", by, number);
      caught += number;
    }
    table += "\n";
    EXPECT_GT(caught, 0) << name << ": never harmful, so nothing was tested";
  }
  std::cout << table;
}

}  // namespace
}  // namespace braid
