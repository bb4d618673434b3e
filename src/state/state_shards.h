#pragma once

#include <cstddef>
#include <vector>

#include "checkpoint/tensor_index.h"
#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "state/state_map.h"
#include "state/state_source.h"

namespace braid {

/// Elements of one part of a parameter, counted as in files (`stored_shape`).
struct StatePiece {
  StatePart part = StatePart::kWeights;
  size_t parameter = 0;  ///< index into ParameterLayout::parameters of the whole model
  PieceRange range;

  friend bool operator==(const StatePiece&, const StatePiece&) = default;
};

/// The pieces that one writer of a checkpoint writes, and their source, which needs to have only
/// these. Null: a writer in another process.
struct StateShard {
  const StateSource* source = nullptr;
  std::vector<StatePiece> pieces;
};

/// The parameter's shape without padding rows of the vocabulary, which files do not contain.
Shape stored_shape(const Parameter& parameter, const ModelSpec& model);

/// Everything that is trained from one source, except moments that are zero.
StateShard whole_shard(const ParameterLayout& layout, const ModelSpec& model,
                       const StateSource& source);

/// The buffer that holds a part of a unit in training: main weights if the unit has them, otherwise
/// parameters.
StateBuffer buffer_of(StatePart part, const StateMap& map, size_t unit);

/// Divides a state among the ranks of `map`, so that each rank writes what it holds and each
/// element is written once. Elements that several ranks hold go to the rank with the fewest so far,
/// in pieces of at most `max_piece_elems`, so that copies share the work by bytes. Returns the
/// pieces by rank. `whole` is the layout of the model as one rank would hold it. The result depends
/// only on the arguments, so it is the same on every rank.
std::vector<std::vector<StatePiece>> assign_pieces(const StateMap& map,
                                                   const ParameterLayout& whole,
                                                   const ModelSpec& model,
                                                   int64_t max_piece_elems = int64_t{64} << 20);

}  // namespace braid
