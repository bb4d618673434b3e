#include "state/state_shards.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

/// By set of ranks: the elements that exactly these ranks hold, ascending.
using Holdings = std::map<std::vector<size_t>, std::vector<PieceRange>>;

/// A block of a parameter that a rank holds, as a matrix of `row_elems` columns.
struct HeldBlock {
  MatrixBlock place;
  size_t rank = 0;
};

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
/// Time: n log n in the number of blocks, for any sizes, except for bands that many blocks cross.
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

/// The blocks of each parameter that the ranks hold, without padding rows of the vocabulary.
class HeldParameters {
 public:
  HeldParameters(const StateMap& map, StatePart part, const ParameterLayout& whole,
                 const ModelSpec& model)
      : whole_(whole), model_(model), held_(whole.parameters.size()) {
    for (size_t unit = 0; unit < whole.units.size(); ++unit) {
      for (const StateBlock& block : map.blocks(buffer_of(part, map, unit), unit)) {
        add(unit, block);
      }
    }
  }

  /// Call it at most once per parameter.
  std::vector<HeldBlock> take(size_t parameter) { return std::move(held_[parameter]); }

 private:
  void add(size_t unit, const StateBlock& block) {
    const std::vector<size_t>& slots = whole_.units[unit].slots;
    const auto behind = std::ranges::upper_bound(
        slots, block.unit_begin, {}, [&](size_t slot) { return whole_.slots[slot].begin; });
    check(behind != slots.begin(), "element {} of unit {} is of no parameter", block.unit_begin,
          unit);
    const ParameterSlot& slot = whole_.slots[*std::prev(behind)];
    const Shape shape = stored_shape(whole_.parameters[slot.parameter], model_);
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

  const ParameterLayout& whole_;
  const ModelSpec& model_;
  std::vector<std::vector<HeldBlock>> held_;
};

/// Splits the range into pieces of at most `max_elems`, of whole rows if possible.
std::vector<PieceRange> cut(const PieceRange& range, int64_t pitch, int64_t max_elems) {
  std::vector<PieceRange> pieces;
  if (range.num_runs == 1) {
    const int64_t size = max_elems >= pitch ? max_elems / pitch * pitch : max_elems;
    for (int64_t begin = 0; begin < range.run_elems; begin += size) {
      pieces.push_back({range.begin + begin, 1, std::min(size, range.run_elems - begin)});
    }
    return pieces;
  }
  const int64_t runs = std::max<int64_t>(1, max_elems / range.run_elems);
  for (int64_t run = 0; run < range.num_runs; run += runs) {
    pieces.push_back(
        {range.begin + run * pitch, std::min(runs, range.num_runs - run), range.run_elems});
  }
  return pieces;
}

size_t num_ranks(const StateMap& map) {
  size_t count = 0;
  for (const StateBufferFacts& buffer : map.buffers()) {
    count = std::max(count, buffer.rank + 1);
  }
  return count;
}

}  // namespace

Shape stored_shape(const Parameter& parameter, const ModelSpec& model) {
  Shape shape = parameter.shape;
  if (parameter.vocabulary_rows) {
    shape[0] = model.vocabulary;
  }
  return shape;
}

StateShard whole_shard(const ParameterLayout& layout, const ModelSpec& model,
                       const StateSource& source) {
  StateShard shard{.source = &source, .pieces = {}};
  for (const StatePart part : kStateParts) {
    if (part != StatePart::kWeights && source.is_zero(part)) {
      continue;
    }
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      shard.pieces.push_back({part, i, whole_range(stored_shape(layout.parameters[i], model))});
    }
  }
  return shard;
}

StateBuffer buffer_of(StatePart part, const StateMap& map, size_t unit) {
  switch (part) {
    case StatePart::kWeights:
      return map.blocks(StateBuffer::kMainWeight, unit).empty() ? StateBuffer::kParam
                                                                : StateBuffer::kMainWeight;
    case StatePart::kExpAvg:
      return StateBuffer::kExpAvg;
    case StatePart::kExpAvgSq:
      return StateBuffer::kExpAvgSq;
  }
  throw_internal_error("no such part of a state");
}

std::vector<std::vector<StatePiece>> assign_pieces(const StateMap& map,
                                                   const ParameterLayout& whole,
                                                   const ModelSpec& model,
                                                   int64_t max_piece_elems) {
  std::vector<std::vector<StatePiece>> pieces(num_ranks(map));
  std::vector<int64_t> load(pieces.size(), 0);  // elements
  for (const StatePart part : kStateParts) {
    HeldParameters held(map, part, whole, model);
    for (size_t parameter = 0; parameter < whole.parameters.size(); ++parameter) {
      const int64_t pitch = row_elems(whole.parameters[parameter].shape);
      for (const auto& [ranks, ranges] : holdings_of(held.take(parameter), pitch)) {
        for (const PieceRange& range : ranges) {
          for (const PieceRange& piece : cut(range, pitch, max_piece_elems)) {
            const size_t owner = *std::min_element(
                ranks.begin(), ranks.end(), [&](size_t a, size_t b) { return load[a] < load[b]; });
            load[owner] += piece.num_elems();
            pieces[owner].push_back({part, parameter, piece});
          }
        }
      }
    }
  }
  return pieces;
}

}  // namespace braid
