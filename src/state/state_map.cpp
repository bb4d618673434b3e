#include "state/state_map.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "base/errors.h"
#include "checkpoint/tensor_index.h"
#include "parallel/unit_buffers.h"
#include "plan/rank_programs.h"

namespace braid {
namespace {

using NameOfUnit = std::string (*)(const ParameterUnit&);
constexpr std::array<NameOfUnit, kNumStateBuffers> kNames = {
    param_buffer_name,   main_weight_buffer_name, main_grad_buffer_name,
    exp_avg_buffer_name, exp_avg_sq_buffer_name,  ema_buffer_name};

/// Persistent buffers by name.
std::unordered_map<std::string_view, const Buffer*> persistent_buffers(const Program& program) {
  std::unordered_map<std::string_view, const Buffer*> by_name;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.lifetime == Lifetime::kPersistent) {
      by_name.emplace(buffer.name, &buffer);
    }
  }
  return by_name;
}

/// What a rank has of a unit in this buffer: all, a shard, or the part that it updates.
UnitRange range_of(const Buffer& buffer, const ParameterLayout& layout, size_t unit,
                   std::span<const int64_t> shard_indices) {
  const int64_t num_elems = layout.units[unit].num_elems;
  if (buffer.num_elems() == num_elems) {
    return {0, num_elems};
  }
  const UnitRange held = held_range(layout, unit, shard_indices);
  return buffer.num_elems() == held.num_elems() ? held : owned_range(layout, unit, shard_indices);
}

}  // namespace

StateMap::StateMap(const ParameterLayout& whole, std::span<const StateRank> ranks)
    : copies_(kNumStateBuffers, Blocks(whole.units.size())) {
  std::map<const Program*, BuffersByName> persistent;  // ranks share programs
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto [found, is_new] = persistent.try_emplace(ranks[i].program);
    if (is_new) {
      found->second = persistent_buffers(*ranks[i].program);
    }
    add_rank(whole, ranks[i], i, found->second);
  }
}

void StateMap::add_rank(const ParameterLayout& whole, const StateRank& rank, size_t index,
                        const BuffersByName& by_name) {
  const ParameterLayout& layout = *rank.layout;
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const ParameterUnit& facts = layout.units[unit];
    for (size_t kind = 0; kind < kNumStateBuffers; ++kind) {
      const auto found = by_name.find(kNames[kind](facts));
      if (found == by_name.end()) {
        continue;
      }
      const Buffer& buffer = *found->second;
      const UnitRange range = range_of(buffer, layout, unit, rank.shard_indices);
      check(buffer.num_elems() == range.num_elems(), "buffer {} has {} elements, its range {}",
            buffer.name, buffer.num_elems(), range.num_elems());
      int64_t num_mapped = 0;
      const bool has_old = static_cast<StateBuffer>(kind) == StateBuffer::kParam &&
                           rank.up_to_date && gathers_before_use(layout, unit, *rank.up_to_date);
      const UnitRange mapped = has_old ? owned_range(layout, unit, rank.shard_indices) : range;
      for_each_block(layout, unit, mapped, [&](const ParameterBlock& block) {
        const Parameter& parameter = layout.parameters[block.parameter];
        const ParameterSlot& slot = whole.slot(parameter.name);
        copies_[kind][slot.unit].push_back({.unit_begin = slot.begin + block.full_begin,
                                            .num_runs = block.num_runs,
                                            .run_elems = block.run_elems,
                                            .pitch = row_elems(parameter.shape),
                                            .rank = index,
                                            .buffer = buffers_.size(),
                                            .buffer_begin = block.unit_begin - range.begin});
        num_mapped += block.num_elems();
      });
      buffers_.push_back({.kind = static_cast<StateBuffer>(kind),
                          .name = buffer.name,
                          .rank = index,
                          .dtype = buffer.dtype,
                          .has_gaps = num_mapped < range.num_elems()});
    }
  }
}

bool StateMap::has(StateBuffer kind) const {
  return std::ranges::any_of(copies_[static_cast<size_t>(kind)],
                             [](const auto& blocks) { return !blocks.empty(); });
}

void StateMap::for_each_copy(StateBuffer kind, size_t unit, int64_t begin, int64_t count,
                             const std::function<void(const StateRun&)>& visit,
                             const std::function<bool(size_t rank)>& of_rank) const {
  for (const StateBlock& block : copies_[static_cast<size_t>(kind)].at(unit)) {
    if (of_rank && !of_rank(block.rank)) {
      continue;
    }
    const PieceRange runs{block.unit_begin, block.num_runs, block.run_elems};
    for_each_overlap(runs, block.pitch, begin, begin + count,
                     [&](int64_t of_block, int64_t of_unit, int64_t num_elems) {
                       visit({.unit_begin = of_unit,
                              .num_elems = num_elems,
                              .rank = block.rank,
                              .buffer = block.buffer,
                              .buffer_begin = block.buffer_begin + of_block});
                     });
  }
}

void StateMap::for_each_element(StateBuffer kind, size_t unit, int64_t begin, int64_t count,
                                const std::function<void(const StateRun&)>& visit) const {
  std::vector<StateRun> runs;
  for_each_copy(kind, unit, begin, count, [&](const StateRun& run) { runs.push_back(run); });
  std::ranges::stable_sort(runs, {}, &StateRun::unit_begin);
  int64_t covered = begin;
  for (const StateRun& run : runs) {
    const int64_t end = run.unit_begin + run.num_elems;
    if (end > covered) {
      const int64_t skipped = std::max<int64_t>(0, covered - run.unit_begin);
      visit({.unit_begin = run.unit_begin + skipped,
             .num_elems = run.num_elems - skipped,
             .rank = run.rank,
             .buffer = run.buffer,
             .buffer_begin = run.buffer_begin + skipped});
      covered = end;
    }
  }
}

StateMap make_state_map(const RunPlan& plan, StateCopies copies) {
  using Place = std::tuple<int, int, int, int>;  // by which layouts differ
  const RankPrograms programs = rank_programs(plan);
  std::map<Place, ParameterLayout> layouts;
  std::vector<StateRank> ranks;
  for (int rank = 0; rank < plan.run.mesh.num_ranks(); ++rank) {
    const MeshPosition at = plan.run.mesh.position(rank);
    const ExpertPosition experts = plan.run.mesh.expert_position(rank);
    const auto [layout, is_new] =
        layouts.try_emplace({at.tensor, at.pipeline, experts.expert, experts.expert_tensor});
    if (is_new) {
      layout->second = make_rank_layout(plan.run.model, plan.run.mesh, rank, plan.run.parallel);
    }
    ranks.push_back({.layout = &layout->second,
                     .program = programs.programs[programs.program_of[static_cast<size_t>(rank)]],
                     .shard_indices = shard_indices(plan.run.mesh, rank, layout->second.domains),
                     .up_to_date = copies == StateCopies::kUpToDate
                                       ? std::optional(plan.run.parallel.weight_gather)
                                       : std::nullopt});
  }
  return StateMap(plan.layout, ranks);
}

}  // namespace braid
