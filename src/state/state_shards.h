#pragma once

#include <cstddef>
#include <vector>

#include "checkpoint/tensor_index.h"
#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "state/state_map.h"
#include "state/state_source.h"

namespace braid {

/// Elements of one part of a parameter, counted as files have it (`stored_shape`).
struct StatePiece {
  StatePart part = StatePart::kWeights;
  size_t parameter = 0;  ///< index into ParameterLayout::parameters of the whole model
  PieceRange range;

  friend bool operator==(const StatePiece&, const StatePiece&) = default;
};

/// What one writer of a checkpoint writes, and from where: `source` needs to have these only. Null:
/// a writer in another process.
struct StateShard {
  const StateSource* source = nullptr;
  std::vector<StatePiece> pieces;
};

/// The parameter's shape without padding rows of the vocabulary, which no file has.
Shape stored_shape(const Parameter& parameter, const ModelSpec& model);

/// Everything from one source, but for moments that are zero.
StateShard whole_shard(const ParameterLayout& layout, const ModelSpec& model,
                       const StateSource& source);

/// The buffer that holds a part of a unit in training: main weights where the unit has some, else
/// parameters.
StateBuffer buffer_of(StatePart part, const StateMap& map, size_t unit);

/// Cuts a state among the ranks of `map`, so that each writes what it holds: by rank, each element
/// once. What several ranks hold goes to the one with the least so far, in pieces of at most
/// `max_piece_elems`; so copies share the work by bytes. `whole` is the layout of the model as one
/// rank would hold it. The same on every rank, from the map alone.
std::vector<std::vector<StatePiece>> assign_pieces(const StateMap& map,
                                                   const ParameterLayout& whole,
                                                   const ModelSpec& model,
                                                   int64_t max_piece_elems = int64_t{64} << 20);

}  // namespace braid
