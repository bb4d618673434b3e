#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/env.h"

namespace braid {

/// `braid train` sets it for the processes that it starts.
inline constexpr std::string_view kBraidLaunchVariable = "BRAID_LAUNCH";

/// The position of this process among those of a run, one per rank.
struct Launch {
  std::string launcher;  ///< "braid", "torchrun", "mpirun" or "srun"
  int num_processes = 1;
  int process = 0;        ///< its rank
  int local_process = 0;  ///< index on its host
  std::string host;       ///< address of process 0 for all others
  int port = 0;
  std::string job;       ///< the launcher's name for the run; no secret
  std::string secret;    ///< of the run, which its processes prove to each other; may be empty
  int listener = -1;     ///< of process 0, if its launcher already listens: a file descriptor
  int launcher_pid = 0;  ///< of "braid"
};

/// Reads the launch from the environment: that of `braid train` itself, of torchrun (RANK,
/// WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), of srun (SLURM_PROCID, SLURM_NTASKS,
/// SLURM_LOCALID, SLURM_STEP_NODELIST) if several tasks run in a step, or of mpirun (Open MPI's
/// OMPI_COMM_WORLD_*, or PMI_RANK and PMI_SIZE). MASTER_ADDR and MASTER_PORT may be set with any of
/// them. Without them, srun's address is the first host of the list, mpirun's is this host if all
/// ranks are on it, and the port is derived from the job. If all ranks are on this host, they meet
/// on its loopback. Nullopt without any of these variables, or for one process. Throws ConfigError
/// for missing or contradictory values, and as read_run_secret (run_secret.h).
std::optional<Launch> find_launch(const EnvLookup& lookup = process_environment());

/// "torchrun: rank 1 of 8, rank 0 at node1, port 29500", or "none" with an explanation.
std::string describe_launch(const std::optional<Launch>& launch);

/// The first name in a list of hosts in Slurm's format: "node[003-005,9],other" gives node003.
std::string first_host(const std::string& list);

}  // namespace braid
