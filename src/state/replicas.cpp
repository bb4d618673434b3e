#include "state/replicas.h"

#include <algorithm>
#include <array>
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
    : map_(map), whole_(whole), runs_(kNumStateBuffers) {
  for (const ReplicatedKind& kind : kReplicatedKinds) {
    for (size_t unit = 0; unit < whole.units.size(); ++unit) {
      std::vector<StateRun>& runs = runs_[static_cast<size_t>(kind.kind)].emplace_back();
      map.for_each_copy(
          kind.kind, unit, 0, whole.units[unit].num_elems,
          [&](const StateRun& run) { runs.push_back(run); }, [&](size_t of) { return of == rank; });
      std::ranges::sort(runs, {}, &StateRun::unit_begin);
    }
  }
}

std::vector<BufferElems> ReplicaPlaces::of(const ReplicatedTensor& tensor) const {
  const ParameterSlot& slot = whole_.slots[tensor.parameter];
  const int64_t pitch = row_elems(whole_.parameters[tensor.parameter].shape);
  std::vector<BufferElems> places;
  for (const PieceRange& range : tensor.ranges) {
    for (int64_t run = 0; run < range.num_runs; ++run) {
      const int64_t begin = slot.begin + range.begin + run * pitch;
      append(tensor.kind, slot.unit, {begin, begin + range.run_elems}, places);
    }
  }
  return places;
}

void ReplicaPlaces::append(StateBuffer kind, size_t unit, UnitRange range,
                           std::vector<BufferElems>& places) const {
  const std::vector<StateRun>& runs = runs_[static_cast<size_t>(kind)].at(unit);
  auto run = std::partition_point(runs.begin(), runs.end(), [&](const StateRun& one) {
    return one.unit_begin + one.num_elems <= range.begin;
  });
  int64_t reached = range.begin;
  for (; run != runs.end() && run->unit_begin <= reached && reached < range.end; ++run) {
    const int64_t end = std::min(range.end, run->unit_begin + run->num_elems);
    if (end > reached) {  // a rank may hold an element twice
      const StateBufferFacts& buffer = map_.buffers()[run->buffer];
      append_elems(places, {.buffer = buffer.name,
                            .dtype = buffer.dtype,
                            .begin = run->buffer_begin + reached - run->unit_begin,
                            .num_elems = end - reached});
      reached = end;
    }
  }
  check(reached == range.end, "elements from {} to {} of unit {} are not on their rank", reached,
        range.end, unit);
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
