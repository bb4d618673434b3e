#include "state/holdings.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

/// Extends the last range by these elements, or begins another one.
void append_range(std::vector<PieceRange>& ranges, const PieceRange& next, int64_t pitch) {
  if (!ranges.empty()) {
    PieceRange& last = ranges.back();
    if (last.num_runs == 1 && next.num_runs == 1 && last.begin + last.run_elems == next.begin) {
      last.run_elems += next.run_elems;
      return;
    }
    const bool is_block =
        last.run_elems == next.run_elems && last.begin % pitch + last.run_elems <= pitch;
    if (is_block && last.begin + last.num_runs * pitch == next.begin) {
      last.num_runs += next.num_runs;
      return;
    }
  }
  ranges.push_back(next);
}

PieceRange range_of(const MatrixBlock& block, int64_t pitch) {
  const int64_t begin = block.row_begin * pitch + block.column_begin;
  const bool has_whole_rows = block.column_end - block.column_begin == pitch;
  return has_whole_rows ? PieceRange{begin, 1, block.area()}
                        : PieceRange{begin, block.row_end - block.row_begin,
                                     block.column_end - block.column_begin};
}

/// Adds the holders of the columns of rows [row_begin, row_end): `held` are the blocks that contain
/// all of these rows. A sweep over their begins and ends.
void add_rows(Holdings& holdings, std::span<const HeldBlock> held, int64_t row_begin,
              int64_t row_end, int64_t pitch) {
  struct Edge {
    int64_t column;
    int change;
    size_t rank;
  };
  std::vector<Edge> edges;
  for (const HeldBlock& block : held) {
    edges.push_back({block.place.column_begin, 1, block.rank});
    edges.push_back({block.place.column_end, -1, block.rank});
  }
  std::ranges::sort(edges, {}, &Edge::column);
  std::map<size_t, int> active;  // number of copies by rank
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto copies = active.try_emplace(edges[i].rank, 0).first;
    copies->second += edges[i].change;
    if (copies->second == 0) {
      active.erase(copies);
    }
    const bool ends = i + 1 == edges.size() || edges[i + 1].column == edges[i].column;
    if (ends || active.empty()) {
      continue;
    }
    std::vector<size_t> ranks;
    for (const auto& [rank, count] : active) {
      ranks.push_back(rank);
    }
    const MatrixBlock part{row_begin, row_end, edges[i].column, edges[i + 1].column};
    append_range(holdings[std::move(ranks)], range_of(part, pitch), pitch);
  }
}

/// The holders of the elements of a parameter, in bands of rows in which no block begins or ends.
Holdings holdings_of(std::vector<HeldBlock> held, int64_t pitch) {
  std::vector<int64_t> edges;
  for (const HeldBlock& block : held) {
    edges.push_back(block.place.row_begin);
    edges.push_back(block.place.row_end);
  }
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::ranges::stable_sort(held, {}, [](const HeldBlock& block) { return block.place.row_begin; });
  Holdings holdings;
  std::vector<HeldBlock> crossing;
  auto next = held.begin();
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    std::erase_if(crossing,
                  [&](const HeldBlock& block) { return block.place.row_end == edges[i]; });
    for (; next != held.end() && next->place.row_begin == edges[i]; ++next) {
      crossing.push_back(*next);
    }
    add_rows(holdings, crossing, edges[i], edges[i + 1], pitch);
  }
  return holdings;
}

}  // namespace

HeldParameters::HeldParameters(const StateMap& map, const ParameterLayout& whole,
                               const HeldOptions& options)
    : whole_(whole), held_(whole.parameters.size()) {
  for (size_t unit = 0; unit < whole.units.size(); ++unit) {
    for (const StateBlock& block : map.blocks(options.kind(unit), unit)) {
      add(unit, block, options);
    }
  }
}

Holdings HeldParameters::take(size_t parameter) {
  return holdings_of(std::move(held_[parameter]), row_elems(whole_.parameters[parameter].shape));
}

void HeldParameters::add(size_t unit, const StateBlock& block, const HeldOptions& options) {
  const std::vector<size_t>& slots = whole_.units[unit].slots;
  const auto behind = std::ranges::upper_bound(
      slots, block.unit_begin, {}, [&](size_t slot) { return whole_.slots[slot].begin; });
  check(behind != slots.begin(), "element {} of unit {} is of no parameter", block.unit_begin,
        unit);
  const ParameterSlot& slot = whole_.slots[*std::prev(behind)];
  const Shape shape = options.shape(whole_.parameters[slot.parameter]);
  std::vector<MatrixBlock> places;
  add_blocks({block.unit_begin - slot.begin, block.num_runs, block.run_elems}, row_elems(shape),
             places);
  for (MatrixBlock& place : places) {
    place.row_end = std::min(place.row_end, shape[0]);
    if (place.row_begin < place.row_end) {
      held_[slot.parameter].push_back({place, block.rank});
    }
  }
}

}  // namespace braid
