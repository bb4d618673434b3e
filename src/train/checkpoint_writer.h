#pragma once

#include <functional>
#include <future>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "comm/process_group.h"
#include "runtime/device_shards.h"
#include "runtime/engine.h"

namespace braid {

/// Writes the checkpoints of a run: while steps wait, or from a copy of the state while they go on.
/// All processes of a run make the same calls between the same steps; `finished` may be called at
/// any time. At most one save runs at a time. All of its errors are thrown by the functions below,
/// in the thread that calls them.
class CheckpointWriter {
 public:
  struct Save {
    CheckpointState progress;
    SaveOptions options;                ///< `together` is replaced
    std::function<void()> before = {};  ///< on the thread that writes, before anything else
    bool waits = true;                  ///< steps wait until everything is durable
    std::function<void(SaveOptions&)> adjust = {};  ///< for tests
  };
  struct Saved {
    std::string path;
    double seconds = 0;                  ///< from the call of `save`
    std::optional<double> copy_seconds;  ///< for which steps waited; nullopt: for all of it
  };

  /// `engine` and `processes` must outlive this object. If steps will not wait for all saves
  /// (`copies_state`), allocates the copies.
  CheckpointWriter(Engine& engine, ProcessGroup& processes);
  /// Waits for the save that runs.
  ~CheckpointWriter() = default;
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Requires that no save runs and that no step is in flight. With `waits` the save has ended when
  /// this returns.
  void save(Save save);
  /// The save that has ended since the last call of this or the next function; nullopt if there is
  /// none, or if it still runs.
  std::optional<Saved> finished();
  /// The same, but waits for a save that runs.
  std::optional<Saved> finish();

 private:
  Engine& engine_;
  ProcessGroup& processes_;
  std::optional<DeviceShards> copies_;
  std::future<Saved> running_;  // last: its destructor waits for a thread that uses the rest
};

}  // namespace braid
