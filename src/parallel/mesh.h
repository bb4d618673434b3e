#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Sizes of the parallel dimensions; their product is the number of ranks.
/// Rank order, fastest first: tensor, context, data, pipeline (Megatron's default
/// "tp-cp-ep-dp-pp").
struct MeshSizes {
  int tensor = 1;
  int context = 1;
  int data = 1;
  int pipeline = 1;

  int num_ranks() const { return tensor * context * data * pipeline; }
};

/// A rank's place in each dimension.
struct MeshPosition {
  int tensor = 0;
  int context = 0;
  int data = 0;
  int pipeline = 0;
};

class Mesh {
 public:
  /// Throws ConfigError naming the option of a size below 1.
  explicit Mesh(const MeshSizes& sizes);

  const MeshSizes& sizes() const { return sizes_; }
  int num_ranks() const { return sizes_.num_ranks(); }
  MeshPosition position(int rank) const;
  int rank_at(const MeshPosition& position) const;

  /// The ranks that differ from `rank` in the data dimension only (in that dimension's order), and
  /// likewise for others.
  Group data_group(int rank) const;
  Group tensor_group(int rank) const;
  Group context_group(int rank) const;
  Group pipeline_group(int rank) const;

 private:
  Group group_along(int rank, int MeshPosition::*dimension, int size, GroupKind kind,
                    std::string_view name) const;

  MeshSizes sizes_;
};

}  // namespace braid
