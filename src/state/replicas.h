#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "backends/executor.h"
#include "checkpoint/tensor_index.h"
#include "parallel/parameter_layout.h"
#include "state/state_map.h"

namespace braid {

/// Elements of a tensor of the state that several ranks hold.
struct ReplicatedTensor {
  size_t parameter = 0;  ///< index into ParameterLayout::parameters of the whole model
  StateBuffer kind = StateBuffer::kParam;
  std::vector<PieceRange> ranges;  ///< of the parameter, ascending
};

/// What exactly these ranks hold: the same bits on each of them, between any two steps.
struct ReplicaSet {
  std::vector<size_t> ranks;  ///< at least two, ascending
  std::vector<ReplicatedTensor> tensors;
};

/// All elements of weights, main weights and moments that several ranks hold, whatever the reason:
/// data or context ranks with copies, replicas of shards, tensor ranks with the same norms, two
/// stages with tied embeddings. `whole` is the layout of the model as one rank would hold it. The
/// result depends only on the arguments, so it is the same on every rank.
std::vector<ReplicaSet> replica_sets(const StateMap& map, const ParameterLayout& whole);

/// Finds the tensors of replica sets in the buffers of one rank.
class ReplicaPlaces {
 public:
  /// The arguments must outlive it.
  ReplicaPlaces(const StateMap& map, const ParameterLayout& whole, size_t rank);

  /// Where this rank holds the tensor, in the order of its ranges, which is that of every rank.
  /// Requires: the rank is one of the tensor's set. The map must outlive the result.
  std::vector<BufferElems> of(const ReplicatedTensor& tensor) const;

 private:
  BufferElems elems_of(const StateBlock& block, int64_t begin, int64_t num_elems) const;
  bool append_whole(std::span<const StateBlock> blocks, const PieceRange& range, int64_t pitch,
                    std::vector<BufferElems>& places) const;
  void append_runs(std::span<const StateBlock> blocks, const PieceRange& range, int64_t pitch,
                   std::vector<BufferElems>& places) const;

  const StateMap& map_;
  const ParameterLayout& whole_;
  std::vector<std::vector<std::vector<StateBlock>>> blocks_;  // of the rank, by kind and unit
};

/// Appends `next`, joined with the last one if it follows that in the buffer.
void append_elems(std::vector<BufferElems>& places, const BufferElems& next);

/// "layers.0.mlp.fc1.weight (main weights)"
std::string describe_tensor(const ReplicatedTensor& tensor, const ParameterLayout& whole);

}  // namespace braid
