#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/executor.h"
#include "state/state_shards.h"

namespace braid {

class RankState;

/// The state of training programs on executors, divided among the ranks by `assign_pieces`. Each
/// shard is read only from its own executor, so several threads may each read a shard.
class DeviceShards {
 public:
  /// `executors` by rank of the map; null for ranks of other processes, whose shards have no source
  /// in this process. All arguments must outlive it.
  DeviceShards(const StateMap& map, const ParameterLayout& whole, const ModelSpec& model,
               std::span<Executor* const> executors);

  DeviceShards(DeviceShards&& other) noexcept;
  ~DeviceShards();

  /// By rank; valid as long as this object lives.
  std::span<const StateShard> shards() const { return shards_; }

  /// From now on shards are read from a copy in host memory, which this allocates: `copied_bytes`,
  /// page-locked with a GPU. Throws DeviceError if there is no memory.
  void prepare_copy();
  /// Copies the state as it is now, each rank on its own thread, while no step is in flight. Later
  /// steps do not change the shards. Requires `prepare_copy`.
  void take_copy();
  /// What `prepare_copy` has allocated.
  int64_t copy_bytes() const;

 private:
  std::vector<std::unique_ptr<RankState>> sources_;  // by rank; null for other processes
  std::vector<StateShard> shards_;
  const ParameterLayout& whole_;
};

/// Bytes of the copies of these ranks. All arguments as of DeviceShards.
int64_t copied_bytes(const StateMap& map, const ParameterLayout& whole, const ModelSpec& model,
                     std::span<const int> ranks);

}  // namespace braid
