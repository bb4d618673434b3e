#include "state/state_map.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "plan/rank_programs.h"

namespace braid {
namespace {

using NameOfUnit = std::string (*)(const ParameterUnit&);
constexpr std::array<NameOfUnit, kNumStateBuffers> kNames = {
    param_buffer_name, main_weight_buffer_name, main_grad_buffer_name, exp_avg_buffer_name,
    exp_avg_sq_buffer_name};

void sort_by_begin(std::vector<StateRun>& runs) {
  std::stable_sort(runs.begin(), runs.end(), [](const StateRun& a, const StateRun& b) {
    return a.unit_begin < b.unit_begin;
  });
}

StateRun clipped(const StateRun& run, int64_t begin, int64_t end) {
  StateRun part = run;
  part.unit_begin = std::max(run.unit_begin, begin);
  part.num_elems = std::min(run.unit_begin + run.num_elems, end) - part.unit_begin;
  part.buffer_begin += part.unit_begin - run.unit_begin;
  return part;
}

}  // namespace

StateMap::StateMap(const ParameterLayout& whole, std::span<const StateRank> ranks)
    : copies_(kNumStateBuffers, Runs(whole.units.size())) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    add_rank(whole, ranks[i], i);
  }
  for (Runs& units : copies_) {
    for (std::vector<StateRun>& runs : units) {
      sort_by_begin(runs);
    }
    owners_.push_back(each_once(units));
  }
}

void StateMap::add_rank(const ParameterLayout& whole, const StateRank& rank, size_t index) {
  const ParameterLayout& layout = *rank.layout;
  std::unordered_map<std::string_view, const Buffer*> by_name;
  for (const Buffer& buffer : rank.program->buffers) {
    by_name.emplace(buffer.name, &buffer);
  }
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const ParameterUnit& facts = layout.units[unit];
    for (size_t kind = 0; kind < kNumStateBuffers; ++kind) {
      const auto found = by_name.find(kNames[kind](facts));
      if (found == by_name.end() || found->second->lifetime != Lifetime::kPersistent) {
        continue;
      }
      const Buffer& buffer = *found->second;
      const bool is_whole = buffer.num_elems() == facts.num_elems;
      const UnitRange range = is_whole ? UnitRange{0, facts.num_elems}
                                       : shard_of(facts, layout.num_shards, rank.shard_index);
      check(buffer.num_elems() == range.num_elems(), "buffer {} has {} elements, its range {}",
            buffer.name, buffer.num_elems(), range.num_elems());
      int64_t num_mapped = 0;
      for_each_run(layout, unit, range, [&](const ParameterRun& run) {
        const ParameterSlot& slot = whole.slot(layout.parameters[run.parameter].name);
        copies_[kind][slot.unit].push_back({.unit_begin = slot.begin + run.full_begin,
                                            .num_elems = run.num_elems,
                                            .rank = index,
                                            .buffer = buffers_.size(),
                                            .buffer_begin = run.unit_begin - range.begin});
        num_mapped += run.num_elems;
      });
      buffers_.push_back({.kind = static_cast<StateBuffer>(kind),
                          .name = buffer.name,
                          .rank = index,
                          .dtype = buffer.dtype,
                          .has_gaps = num_mapped < range.num_elems()});
    }
  }
}

StateMap::Runs StateMap::each_once(const Runs& copies) {
  Runs owners(copies.size());
  for (size_t unit = 0; unit < copies.size(); ++unit) {
    int64_t covered = 0;
    for (const StateRun& run : copies[unit]) {
      const int64_t end = run.unit_begin + run.num_elems;
      if (end > covered) {
        owners[unit].push_back(clipped(run, covered, end));
        covered = end;
      }
    }
  }
  return owners;
}

bool StateMap::has(StateBuffer kind) const {
  return std::ranges::any_of(copies_[static_cast<size_t>(kind)],
                             [](const auto& runs) { return !runs.empty(); });
}

void StateMap::for_each_copy(StateBuffer kind, size_t unit, int64_t begin, int64_t count,
                             const std::function<void(const StateRun&)>& visit) const {
  // Copies of one place may differ in length, so no search by end is possible; their begins are
  // ascending.
  for (const StateRun& run : copies_[static_cast<size_t>(kind)].at(unit)) {
    if (run.unit_begin >= begin + count) {
      return;
    }
    if (run.unit_begin + run.num_elems > begin) {
      visit(clipped(run, begin, begin + count));
    }
  }
}

void StateMap::for_each_element(StateBuffer kind, size_t unit, int64_t begin, int64_t count,
                                const std::function<void(const StateRun&)>& visit) const {
  const std::vector<StateRun>& runs = owners_[static_cast<size_t>(kind)].at(unit);
  auto run = std::partition_point(runs.begin(), runs.end(), [&](const StateRun& candidate) {
    return candidate.unit_begin + candidate.num_elems <= begin;
  });
  for (; run != runs.end() && run->unit_begin < begin + count; ++run) {
    visit(clipped(*run, begin, begin + count));
  }
}

StateMap make_state_map(const RunPlan& plan) {
  const RankPrograms programs = rank_programs(plan);
  std::vector<ParameterLayout> layouts;
  for (int rank = 0; rank < plan.mesh.num_ranks(); ++rank) {
    layouts.push_back(make_rank_layout(plan.model, plan.mesh, rank, plan.parallel));
  }
  std::vector<StateRank> ranks;
  for (int rank = 0; rank < plan.mesh.num_ranks(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    ranks.push_back({.layout = &layouts[at],
                     .program = programs.programs[programs.program_of[at]],
                     .shard_index = plan.parallel.shard == ShardKind::kNone
                                        ? 0
                                        : plan.mesh.index_in("gradient.shard", rank)});
  }
  return StateMap(plan.layout, ranks);
}

}  // namespace braid
