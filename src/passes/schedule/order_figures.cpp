#include "passes/schedule/order_figures.h"

#include <vector>

#include "ops/offload.h"

namespace braid {
namespace {

/// By task. For a weight gradient: how many tasks on compute streams that do work and are no weight
/// gradients stand in front of it. For other tasks: UINT32_MAX.
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
      num_others += does_nothing(program.spec(it)) ? 0 : 1;
    }
  }
  return places;
}

}  // namespace

SpecTimes measured_spec_ns(const RankPrograms& ranks, const SimResult& result) {
  SpecTimes sum_ns(ranks.programs.size());
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

void count_moved(const Program& program, std::span<const TaskId> order, MovedWgrads& moved) {
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

}  // namespace braid
