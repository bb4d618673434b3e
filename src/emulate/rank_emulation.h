#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/emulated_call.h"
#include "plan/run_plan.h"
#include "runtime/device.h"
#include "trace/timeline.h"

namespace braid {

struct RankEmulationOptions {
  Device device = {};             ///< with a GPU, or the CPU
  std::string cache_folder = {};  ///< as in EngineOptions
  int threads = 1;                ///< of the rank on a CPU, and for its weights
  int64_t warmup_steps = 2;       ///< not timed, behind the first, which is enqueued task by task
  int64_t steps = 5;              ///< timed, at least 1
};

/// One rank of a run that was run without the others.
struct RankEmulation {
  std::vector<int64_t> step_ns;  ///< of the timed steps, from the end of the one in front
  Timeline timeline;             ///< of one step more, which was traced; has this rank alone
  int64_t planned_bytes = 0;     ///< MemoryPlan::peak_bytes, of the rank among others
  int64_t lasting_bytes = 0;     ///< beyond that, for numbers that peers send once (memory_with)
  int64_t allocated_bytes = 0;   ///< by the executor for both
  /// What the driver of a GPU has less than before: all that was taken, with what libraries and
  /// graphs take, and the emulation's own.
  std::optional<int64_t> driver_bytes;
  std::vector<std::string> notes;  ///< Executor::notes

  int64_t median_step_ns() const;
};

/// Runs training steps of one rank at full size: its programs, memory and kernels, with fresh
/// weights and random tokens, while `peers` stand for the other ranks. `plan` has that rank. Losses
/// mean nothing, since what others send is made up; times and memory are those of the rank as far
/// as the peers' times are. Throws ConfigError if the rank does not fit into the GPU, and
/// DeviceError as its executor.
RankEmulation emulate_rank(const RunPlan& plan, int rank, const EmulatedPeers& peers,
                           const RankEmulationOptions& options);

}  // namespace braid
