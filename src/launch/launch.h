#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/env.h"
#include "comm/process_group.h"
#include "config/run_config.h"

namespace braid {

/// Set by `braid train` for the processes that it starts.
inline constexpr std::string_view kBraidLaunchVariable = "BRAID_LAUNCH";

/// Where this process stands among those of a run: one per rank.
struct Launch {
  std::string launcher;  ///< "braid", "torchrun", "mpirun" or "srun"
  int num_processes = 1;
  int process = 0;        ///< whose rank this is
  int local_process = 0;  ///< counted on its host
  std::string host;       ///< of process 0, as all others reach it
  int port = 0;
  std::string token;     ///< the same for all processes of the run
  int listener = -1;     ///< of process 0, if its launcher listens already: a file number
  int launcher_pid = 0;  ///< of "braid"
};

/// What the environment says: that of `braid train` itself, of torchrun (RANK, WORLD_SIZE,
/// LOCAL_RANK, MASTER_ADDR, MASTER_PORT), of srun (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID,
/// SLURM_STEP_NODELIST) where several tasks run in a step, or of mpirun (Open MPI's
/// OMPI_COMM_WORLD_*, or PMI_RANK and PMI_SIZE). MASTER_ADDR and MASTER_PORT may be given to any of
/// them; else srun's address is the first host of the list, mpirun's, where all ranks are on one
/// host, this one, and the port one that follows from the job. Nullopt without any, or where there
/// is one process. Throws ConfigError for what is missing or contradicts itself.
std::optional<Launch> find_launch(const EnvLookup& lookup = process_environment());

/// Throws ConfigError unless that launch is one of this run: as many processes as ranks, and a
/// configuration that may run in several.
void check_launch(const Launch& launch, const RunConfig& config);

/// Whether `braid train` should start a process for each rank of this run, on this host: as
/// runtime.processes says. Throws ConfigError if that cannot be done.
bool wants_processes(const RunConfig& config);

/// Why processes cannot be what this configuration asks for; empty if they can.
std::string why_not_per_rank(const RunConfig& config);

/// A process that says nothing for so long has failed: runtime.timeout_s, 10 s at most.
int64_t longest_silence_s(const RunConfig& config);

/// The processes of that launch: waits for them as long as runtime.timeout_s says. Throws
/// DeviceError, ConfigError.
std::unique_ptr<ProcessGroup> connect_processes(const Launch& launch, const RunConfig& config);

/// "torchrun: rank 1 of 8, rank 0 at node1, port 29500", or "none" and what that means.
std::string describe_launch(const std::optional<Launch>& launch);

/// First name of a list of hosts as Slurm writes them: "node[003-005,9],other" is node003.
std::string first_host(const std::string& list);

}  // namespace braid
