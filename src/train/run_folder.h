#pragma once

#include <optional>
#include <string>

#include "checkpoint/folder_lock.h"
#include "comm/process_group.h"
#include "config/run_config.h"

namespace braid {

/// Validates and resolves the configuration; the first process creates the run folder. Throws
/// ConfigError, and DataError for the folder.
RunConfig prepare_run(RunConfig config, const ProcessGroup& processes);

/// The locks of the folders that a run writes to, by whatever names other runs have for them; only
/// the first process has them.
class RunLocks {
 public:
  /// Locks the run folder and, if it exists, the folder of checkpoints. `config` must outlive this
  /// object. Throws what FolderLock does.
  RunLocks(const RunConfig& config, const ProcessGroup& processes);

  /// Makes and locks the folder of checkpoints, unless it is locked or the run writes none. Throws
  /// what FolderLock does, and DataError.
  void lock_checkpoints();

 private:
  const RunConfig& config_;
  bool leads_;
  std::optional<FolderLock> run_folder_;
  std::optional<FolderLock> checkpoints_;
};

/// Newest checkpoint that checkpoint.resume allows; nullopt to start from scratch. Throws DataError
/// if it names a folder without one.
std::optional<std::string> checkpoint_to_resume(const CheckpointConfig& config);

}  // namespace braid
