#pragma once

#include <functional>

#include "comm/process_group.h"
#include "config/run_config.h"

namespace braid {

/// A process of a run, which has one of its ranks or all of them.
struct RankProcess {
  ProcessGroup& processes;
  int local_process = 0;  ///< index of this process on its host
  /// False where a launcher gives its processes a terminal even if it writes their output
  /// elsewhere.
  bool may_have_terminal = true;
};

/// Calls `work` in the processes of a run of this configuration. Under a launcher (torchrun,
/// mpirun, srun) this is one of them. Otherwise, by runtime.processes, this process starts this
/// command again for each rank and waits for them, or has all ranks itself. `work` ends the group:
/// it calls `finish`, or `abort` before it throws. In processes other than the first an exception
/// ends the process without a message, because the first one knows the errors of all. Throws what
/// `work` throws, EndOfProgram if a started process failed, and as check_launch and
/// connect_processes.
void run_on_ranks(const RunConfig& config, const std::function<void(const RankProcess&)>& work);

}  // namespace braid
