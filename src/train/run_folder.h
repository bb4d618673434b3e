#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "train/run_lock.h"

namespace braid {

/// Validates and resolves the configuration; the first process creates the run folder. Throws
/// ConfigError, and DataError for the folder.
RunConfig prepare_run(RunConfig config, const ProcessGroup& processes);

/// Locks the folders that the run writes to, against processes of other runs; only in the first
/// process. Throws what RunLock does, and DataError.
std::vector<RunLock> lock_run_folders(const RunConfig& config, const ProcessGroup& processes);

/// Newest checkpoint that checkpoint.resume allows; nullopt to start from scratch. Throws DataError
/// if it names a folder without one.
std::optional<std::string> checkpoint_to_resume(const CheckpointConfig& config);

}  // namespace braid
