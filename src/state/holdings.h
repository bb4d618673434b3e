#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <vector>

#include "base/shape.h"
#include "checkpoint/tensor_index.h"
#include "model/parameters.h"
#include "parallel/parameter_layout.h"
#include "state/state_map.h"

namespace braid {

/// By set of ranks, which are ascending: the elements of a parameter that exactly these ranks hold,
/// ascending.
using Holdings = std::map<std::vector<size_t>, std::vector<PieceRange>>;

/// A block of a parameter that a rank holds, as a matrix of `row_elems` columns.
struct HeldBlock {
  MatrixBlock place;
  size_t rank = 0;
};

struct HeldOptions {
  /// The buffers to look at, by unit of the whole model.
  std::function<StateBuffer(size_t unit)> kind;
  /// Rows of a parameter that are outside this shape are left out.
  std::function<Shape(const Parameter& parameter)> shape;
};

/// Which ranks hold which elements of each parameter in one kind of buffer.
class HeldParameters {
 public:
  /// `whole`, the layout of the model as one rank would hold it, must outlive it.
  HeldParameters(const StateMap& map, const ParameterLayout& whole, const HeldOptions& options);

  /// Call it at most once per parameter. Time: n log n in the number of blocks, for any sizes,
  /// except for bands of rows that many blocks cross.
  Holdings take(size_t parameter);

 private:
  void add(size_t unit, const StateBlock& block, const HeldOptions& options);

  const ParameterLayout& whole_;
  std::vector<std::vector<HeldBlock>> held_;  // by parameter
};

}  // namespace braid
