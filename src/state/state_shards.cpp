#include "state/state_shards.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "state/holdings.h"

namespace braid {
namespace {

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
      if (layout.parameters[i].frozen) {
        continue;
      }
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
    case StatePart::kEma:
      return StateBuffer::kEma;
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
    HeldParameters held(
        map, whole,
        {.kind = [&](size_t unit) { return buffer_of(part, map, unit); },
         .shape = [&](const Parameter& parameter) { return stored_shape(parameter, model); }});
    for (size_t parameter = 0; parameter < whole.parameters.size(); ++parameter) {
      if (whole.parameters[parameter].frozen) {
        continue;
      }
      const int64_t pitch = row_elems(whole.parameters[parameter].shape);
      for (const auto& [ranks, ranges] : held.take(parameter)) {
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
