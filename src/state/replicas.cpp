#include "state/replicas.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "state/holdings.h"

namespace braid {
namespace {

struct ReplicatedKind {
  StateBuffer kind;
  std::string_view name;
};
// Main gradients are made anew in each step.
constexpr std::array kReplicatedKinds = {
    ReplicatedKind{StateBuffer::kParam, "weights"},
    ReplicatedKind{StateBuffer::kMainWeight, "main weights"},
    ReplicatedKind{StateBuffer::kExpAvg, "exp_avg"},
    ReplicatedKind{StateBuffer::kExpAvgSq, "exp_avg_sq"},
    ReplicatedKind{StateBuffer::kEma, "averages of weights"},
};

}  // namespace

std::vector<ReplicaSet> replica_sets(const StateMap& map, const ParameterLayout& whole) {
  std::map<std::vector<size_t>, std::vector<ReplicatedTensor>> by_ranks;
  for (const ReplicatedKind& kind : kReplicatedKinds) {
    HeldParameters held(map, whole,
                        {.kind = [&](size_t) { return kind.kind; },
                         .shape = [](const Parameter& parameter) { return parameter.shape; }});
    for (size_t parameter = 0; parameter < whole.parameters.size(); ++parameter) {
      for (auto& [ranks, ranges] : held.take(parameter)) {
        if (ranks.size() > 1) {
          by_ranks[ranks].push_back({parameter, kind.kind, std::move(ranges)});
        }
      }
    }
  }
  std::vector<ReplicaSet> sets;
  for (auto& [ranks, tensors] : by_ranks) {
    sets.push_back({ranks, std::move(tensors)});
  }
  return sets;
}

ReplicaPlaces::ReplicaPlaces(const StateMap& map, const ParameterLayout& whole, size_t rank)
    : map_(map), whole_(whole), blocks_(kNumStateBuffers) {
  for (const ReplicatedKind& kind : kReplicatedKinds) {
    std::vector<std::vector<StateBlock>>& of_kind = blocks_[static_cast<size_t>(kind.kind)];
    of_kind.resize(whole.units.size());
    for (size_t unit = 0; unit < whole.units.size(); ++unit) {
      std::ranges::copy_if(map.blocks(kind.kind, unit), std::back_inserter(of_kind[unit]),
                           [&](const StateBlock& block) { return block.rank == rank; });
      std::ranges::sort(of_kind[unit], {}, &StateBlock::unit_begin);
    }
  }
}

std::vector<BufferElems> ReplicaPlaces::of(const ReplicatedTensor& tensor) const {
  const ParameterSlot& slot = whole_.slots[tensor.parameter];
  const int64_t pitch = row_elems(whole_.parameters[tensor.parameter].shape);
  std::vector<StateBlock> blocks;
  std::ranges::copy_if(blocks_[static_cast<size_t>(tensor.kind)].at(slot.unit),
                       std::back_inserter(blocks), [&](const StateBlock& block) {
                         return block.unit_begin >= slot.begin && block.unit_begin < slot.end;
                       });
  std::vector<BufferElems> places;
  for (PieceRange range : tensor.ranges) {
    range.begin += slot.begin;
    if (!append_whole(blocks, range, pitch, places)) {
      append_runs(blocks, range, pitch, places);
    }
  }
  return places;
}

BufferElems ReplicaPlaces::elems_of(const StateBlock& block, int64_t begin,
                                    int64_t num_elems) const {
  const StateBufferFacts& buffer = map_.buffers()[block.buffer];
  return {.buffer = buffer.name,
          .dtype = buffer.dtype,
          .begin = block.buffer_begin + begin,
          .num_elems = num_elems};
}

/// Appends runs that are one behind the other in a buffer, because they are runs of one block.
/// Returns whether they are: most are, so that the rows of a matrix need not be visited.
bool ReplicaPlaces::append_whole(std::span<const StateBlock> blocks, const PieceRange& range,
                                 int64_t pitch, std::vector<BufferElems>& places) const {
  for (const StateBlock& block : blocks) {
    const int64_t ahead = range.begin - block.unit_begin;
    if (block.run_elems == range.run_elems && ahead >= 0 && ahead % pitch == 0 &&
        ahead / pitch + range.num_runs <= block.num_runs) {
      append_elems(places, elems_of(block, ahead / pitch * block.run_elems, range.num_elems()));
      return true;
    }
  }
  return false;
}

/// Run by run, each of which may lie in several blocks.
void ReplicaPlaces::append_runs(std::span<const StateBlock> blocks, const PieceRange& range,
                                int64_t pitch, std::vector<BufferElems>& places) const {
  for (int64_t run = 0; run < range.num_runs; ++run) {
    const int64_t end = range.begin + run * pitch + range.run_elems;
    int64_t reached = end - range.run_elems;
    std::map<int64_t, BufferElems> found;  // by begin in the unit
    for (const StateBlock& block : blocks) {
      for_each_overlap({block.unit_begin, block.num_runs, block.run_elems}, pitch, reached, end,
                       [&](int64_t of_block, int64_t of_unit, int64_t num_elems) {
                         found.try_emplace(of_unit, elems_of(block, of_block, num_elems));
                       });
    }
    for (auto& [begin, elems] : found) {
      const int64_t twice = reached - begin;  // a rank may hold an element twice
      if (twice < elems.num_elems) {
        check(twice >= 0, "elements from {} to {} are not on their rank", reached, begin);
        append_elems(places, {.buffer = elems.buffer,
                              .dtype = elems.dtype,
                              .begin = elems.begin + twice,
                              .num_elems = elems.num_elems - twice});
        reached = begin + elems.num_elems;
      }
    }
    check(reached == end, "elements from {} to {} are not on their rank", reached, end);
  }
}

void append_elems(std::vector<BufferElems>& places, const BufferElems& next) {
  if (!places.empty()) {
    BufferElems& last = places.back();
    if (last.buffer == next.buffer && last.begin + last.num_elems == next.begin) {
      last.num_elems += next.num_elems;
      return;
    }
  }
  places.push_back(next);
}

std::string describe_tensor(const ReplicatedTensor& tensor, const ParameterLayout& whole) {
  const auto* const kind = std::ranges::find(kReplicatedKinds, tensor.kind, &ReplicatedKind::kind);
  return fmt::format("{} ({})", whole.parameters[tensor.parameter].name, kind->name);
}

}  // namespace braid
