#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backends/executor.h"
#include "state/state_shards.h"

namespace braid {

/// The state of training programs on executors, divided among the ranks by `assign_pieces`. Each
/// shard is read only from its own executor, so several threads may each read a shard.
class DeviceShards {
 public:
  /// `executors` by rank of the map; null for ranks of other processes, whose shards have no source
  /// in this process. All arguments must outlive it.
  DeviceShards(const StateMap& map, const ParameterLayout& whole, const ModelSpec& model,
               std::span<Executor* const> executors);

  /// By rank; valid as long as this object lives.
  std::span<const StateShard> shards() const { return shards_; }

 private:
  std::vector<std::unique_ptr<StateSource>> sources_;  // by rank; null for other processes
  std::vector<StateShard> shards_;
};

}  // namespace braid
