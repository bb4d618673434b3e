#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "launch/environment/find_launch.h"

namespace braid {

/// Throws ConfigError unless that launch fits this run: as many processes as ranks, and a
/// configuration that supports several processes.
void check_launch(const Launch& launch, const RunConfig& config);

/// Whether `braid train` should start a process for each rank of this run on this host, by
/// runtime.processes. Throws ConfigError if that is impossible.
bool wants_processes(const RunConfig& config);

/// Why this configuration cannot run with a process per rank; empty if it can.
std::string why_not_per_rank(const RunConfig& config);

/// A process that sends nothing for this long has failed: runtime.timeout_s, at most 10 s.
int64_t longest_silence_s(const RunConfig& config);

/// Connects the processes of that launch; waits for them up to runtime.timeout_s. Throws
/// DeviceError; ConfigError, also if the run needs a secret and has none (check_secret).
std::unique_ptr<ProcessGroup> connect_processes(const Launch& launch, const RunConfig& config);

}  // namespace braid
