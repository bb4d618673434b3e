#include "plan/step_gains.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/parallel_for.h"
#include "base/text.h"
#include "sim/op_family.h"
#include "sim/price_changes.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNoTime = 0;
constexpr double kHalfTheTime = 0.5;

/// Sums of the compute tasks of a rank, of which `num_tasks` had a launch.
struct ComputeTimes {
  std::array<int64_t, kNumOpFamilies> family_ns{};
  int64_t optimizer_ns = 0;
  int64_t launches_ns = 0;
};

ComputeTimes compute_times(const SimulatedRun& run) {
  const RankPrograms programs = run.rank_programs();
  const SimResult& result = run.result();
  const SimRank& rank = result.ranks[result.alike.kind_of[static_cast<size_t>(run.busiest().rank)]];
  const Program& program = *programs.programs[rank.program];
  const std::span<const TaskTimes> times = times_of(programs, result, rank);
  ComputeTimes sums;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    const OpFamily family = family_of(program.spec(task));
    if (!computes_on_device(family)) {
      continue;
    }
    const int64_t ns = times[i].end_ns - times[i].start_ns;
    const int64_t launch_ns = std::min(ns, run.model().launch_ns());
    sums.launches_ns += launch_ns;
    (task.label.phase == Phase::kOptimizer ? sums.optimizer_ns
                                           : sums.family_ns[static_cast<size_t>(family)]) +=
        ns - launch_ns;
  }
  return sums;
}

/// A cause, its time, and prices without it.
struct Cause {
  StepPart part;
  std::function<void(PriceChanges&)> remove;
};

void add(std::vector<Cause>& causes, std::string name, int64_t ns,
         std::function<void(PriceChanges&)> remove = {}) {
  if (ns > 0) {
    causes.push_back({.part = {.cause = std::move(name), .ns = ns}, .remove = std::move(remove)});
  }
}

void add_compute(const SimulatedRun& run, std::vector<Cause>& causes) {
  const ComputeTimes sums = compute_times(run);
  const auto family_ns = [&](OpFamily family) {
    return sums.family_ns[static_cast<size_t>(family)];
  };
  add(causes, "matrix products", family_ns(OpFamily::kGemm),
      [](PriceChanges& changes) { changes.products = kNoTime; });
  add(causes, "attention", family_ns(OpFamily::kAttention),
      [](PriceChanges& changes) { changes.attention = kNoTime; });
  add(causes, "memory-bound ops", family_ns(OpFamily::kMemoryBound));
  add(causes, "optimizer", sums.optimizer_ns);
  add(causes, "launches", sums.launches_ns);
}

/// Kinds may be exposed at once: each gets its share of the whole.
void add_communication(const SimulatedRun& run, std::vector<Cause>& causes) {
  const RankTimes& times = run.busiest().times;
  double sum_ns = 0;
  for (const CommunicationTime& kind : times.by_group) {
    sum_ns += static_cast<double>(kind.exposed_ns);
  }
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    const auto exposed_ns = static_cast<double>(times.by_group[kind].exposed_ns);
    const double part = sum_ns > 0 ? exposed_ns / sum_ns : 0.0;
    add(causes,
        fmt::format("exposed {} communication", group_kind_name(static_cast<GroupKind>(kind))),
        round_cost_ns(part * static_cast<double>(times.communication.exposed_ns)),
        [kind](PriceChanges& changes) { changes.group_kinds.at(kind) = kNoTime; });
  }
}

std::string percent_text(int64_t ns, int64_t step_ns) {
  return fmt::format("{:.1f}%", 100.0 * static_cast<double>(ns) / static_cast<double>(step_ns));
}

std::string seconds_text(int64_t ns) {
  return format_duration(static_cast<double>(ns) * 1e-9);
}

std::string gain_line(const StepGain& gain, int64_t step_ns) {
  const std::string memory =
      gain.needed_bytes > 0 ? fmt::format(", {}", format_bytes(gain.needed_bytes)) : "";
  return fmt::format("gain      {:<9} {} instead of {} (-{}){}: {}\n", gain.kind,
                     seconds_text(gain.step_ns), seconds_text(step_ns),
                     percent_text(step_ns - gain.step_ns, step_ns), memory, gain.what);
}

}  // namespace

std::vector<StepPart> step_parts(const SimulatedRun& run, int num_threads) {
  std::vector<Cause> causes;
  add_compute(run, causes);
  add_communication(run, causes);
  const RankTimes& times = run.busiest().times;
  add(causes, "copies", times.copy_ns);
  add(causes, run.spec().mesh.sizes().pipeline > 1 ? "pipeline bubble" : "idle", times.bubble_ns);
  parallel_for(causes.size(), num_threads, [&](size_t index) {
    if (causes[index].remove) {
      PriceChanges changes;
      causes[index].remove(changes);
      causes[index].part.gain_ns = run.step_ns() - run.step_ns_with(changes);
    }
  });
  std::vector<StepPart> parts;
  for (Cause& cause : causes) {
    parts.push_back(std::move(cause.part));
  }
  std::ranges::stable_sort(parts, std::greater<>(), &StepPart::ns);
  return parts;
}

StepGain best_hardware(const SimulatedRun& run, int num_threads) {
  std::vector<StepGain> gains;
  std::vector<PriceChanges> changes;
  const auto try_twice = [&](std::string_view what, const auto& halve) {
    halve(changes.emplace_back());
    gains.push_back({.kind = "hardware", .what = fmt::format("{} twice as fast", what)});
  };
  try_twice("tensor cores", [](PriceChanges& it) { it.products = it.attention = kHalfTheTime; });
  try_twice("memory", [](PriceChanges& it) { it.memory_bound = kHalfTheTime; });
  try_twice("links inside nodes", [](PriceChanges& it) { it.node_links = kHalfTheTime; });
  try_twice("links between nodes", [](PriceChanges& it) { it.network_links = kHalfTheTime; });
  parallel_for(gains.size(), num_threads,
               [&](size_t index) { gains[index].step_ns = run.step_ns_with(changes[index]); });
  return *std::ranges::min_element(gains, {}, &StepGain::step_ns);
}

std::string describe_gains(const StepGains& gains) {
  std::vector<std::string> texts;
  for (const StepPart& part : gains.parts) {
    std::string text = fmt::format("{} {}", percent_text(part.ns, gains.step_ns), part.cause);
    if (part.gain_ns >= 0) {
      text += fmt::format(" (without it -{})", percent_text(part.gain_ns, gains.step_ns));
    }
    texts.push_back(std::move(text));
  }
  std::string text = fmt::format("why       {}\n", join(texts, ", "));
  for (const StepGain& gain : gains.gains) {
    text += gain_line(gain, gains.step_ns);
  }
  return gains.nothing.empty() ? text
                               : text + fmt::format("gain      none by a change of {}\n",
                                                    join(gains.nothing, " or "));
}

Json gains_json(const StepGains& gains) {
  Json parts = Json::array();
  for (const StepPart& part : gains.parts) {
    parts.push_back({{"cause", part.cause}, {"ns", part.ns}});
    if (part.gain_ns >= 0) {
      parts.back()["gain_ns"] = part.gain_ns;
    }
  }
  Json changes = Json::array();
  for (const StepGain& gain : gains.gains) {
    changes.push_back({{"kind", gain.kind},
                       {"what", gain.what},
                       {"step_ns", gain.step_ns},
                       {"needed_bytes", gain.needed_bytes}});
  }
  return {{"step_ns", gains.step_ns}, {"parts", parts}, {"changes", changes}};
}

}  // namespace braid
