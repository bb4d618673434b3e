#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/folder_lock.h"
#include "comm/process_group.h"
#include "config/run_config.h"

namespace braid {

/// Validates and resolves the configuration; the first process creates the run folder. Throws
/// ConfigError, and DataError for the folder.
RunConfig prepare_run(RunConfig config, const ProcessGroup& processes);

/// Locks the run folder and, if the run writes checkpoints, their folder, by whatever names other
/// runs have for them; only in the first process. Throws what FolderLock does, and DataError.
std::vector<FolderLock> lock_run_folders(const RunConfig& config, const ProcessGroup& processes);

/// Newest checkpoint that checkpoint.resume allows; nullopt to start from scratch. Throws DataError
/// if it names a folder without one.
std::optional<std::string> checkpoint_to_resume(const CheckpointConfig& config);

}  // namespace braid
