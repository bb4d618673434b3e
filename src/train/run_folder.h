#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "train/run_lock.h"

namespace braid {

/// The validated and resolved configuration; the first process makes the run folder. Throws
/// ConfigError, and DataError for the folder.
RunConfig prepare_run(RunConfig config, const ProcessGroup& processes);

/// The folders that the run writes into, kept from processes of other runs; of the first process.
/// Throws what RunLock does, and DataError.
std::vector<RunLock> lock_run_folders(const RunConfig& config, const ProcessGroup& processes);

/// Newest checkpoint that checkpoint.resume allows; nullopt to start anew. Throws DataError if it
/// names a folder without one.
std::optional<std::string> checkpoint_to_resume(const CheckpointConfig& config);

}  // namespace braid
