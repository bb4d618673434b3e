#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backends/executor.h"
#include "state/state_shards.h"

namespace braid {

/// The state of training programs that lies on executors, cut among the ranks as `assign_pieces`
/// does: each shard is read from its own executor only, so several threads may read a shard each.
class DeviceShards {
 public:
  /// `executors` by rank of the map; null for ranks of other processes, whose shards have no source
  /// here. All arguments must outlive it.
  DeviceShards(const StateMap& map, const ParameterLayout& whole, const ModelSpec& model,
               std::span<Executor* const> executors);

  /// By rank; valid as long as this object lives.
  std::span<const StateShard> shards() const { return shards_; }

 private:
  std::vector<std::unique_ptr<StateSource>> sources_;  // by rank; null elsewhere
  std::vector<StateShard> shards_;
};

}  // namespace braid
