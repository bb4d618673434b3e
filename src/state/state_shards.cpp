#include "state/state_shards.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

/// Elements that the same ranks hold, ascending.
using Holdings = std::map<std::vector<size_t>, std::vector<PieceRange>>;

/// Makes the last range longer by [begin, end), or begins another one.
void append_run(std::vector<PieceRange>& ranges, int64_t begin, int64_t end, int64_t pitch) {
  const int64_t run_elems = end - begin;
  if (!ranges.empty()) {
    PieceRange& last = ranges.back();
    if (last.num_runs == 1 && last.begin + last.run_elems == begin) {
      last.run_elems += run_elems;
      return;
    }
    const bool is_block = last.run_elems == run_elems && last.begin % pitch + run_elems <= pitch;
    if (is_block && last.begin + last.num_runs * pitch == begin) {
      ++last.num_runs;
      return;
    }
  }
  ranges.push_back({.begin = begin, .num_runs = 1, .run_elems = run_elems});
}

/// Who holds elements [0, num_elems) of a parameter: a sweep over where the copies begin and end.
Holdings holdings_of(const StateMap& map, StateBuffer kind, const ParameterSlot& slot,
                     const Shape& shape) {
  struct Edge {
    int64_t at;
    bool begins;
    size_t rank;
  };
  std::vector<Edge> edges;
  map.for_each_copy(kind, slot.unit, slot.begin, shape.num_elems(), [&](const StateRun& run) {
    const int64_t begin = run.unit_begin - slot.begin;
    edges.push_back({begin, true, run.rank});
    edges.push_back({begin + run.num_elems, false, run.rank});
  });
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  Holdings holdings;
  std::map<size_t, int> active;  // copies by rank
  for (size_t i = 0; i < edges.size(); ++i) {
    active[edges[i].rank] += edges[i].begins ? 1 : -1;
    if (active[edges[i].rank] == 0) {
      active.erase(edges[i].rank);
    }
    const bool ends = i + 1 == edges.size() || edges[i + 1].at == edges[i].at;
    if (ends || active.empty()) {
      continue;
    }
    std::vector<size_t> ranks;
    for (const auto& [rank, copies] : active) {
      ranks.push_back(rank);
    }
    append_run(holdings[std::move(ranks)], edges[i].at, edges[i + 1].at, row_elems(shape));
  }
  return holdings;
}

/// The range in pieces of at most `max_elems`, whole rows each where that is possible.
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

StateBuffer buffer_of(StatePart part, const StateMap& map) {
  switch (part) {
    case StatePart::kWeights:
      return map.has(StateBuffer::kMainWeight) ? StateBuffer::kMainWeight : StateBuffer::kParam;
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
    for (size_t parameter = 0; parameter < whole.parameters.size(); ++parameter) {
      const Shape shape = stored_shape(whole.parameters[parameter], model);
      const Holdings holdings =
          holdings_of(map, buffer_of(part, map), whole.slots[parameter], shape);
      for (const auto& [ranks, ranges] : holdings) {
        for (const PieceRange& range : ranges) {
          for (const PieceRange& piece : cut(range, row_elems(shape), max_piece_elems)) {
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
