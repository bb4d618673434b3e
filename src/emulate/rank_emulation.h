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
  int threads = 1;                ///< for a CPU rank, and for the rank's weights
  int64_t warmup_steps = 2;       ///< not timed; after the first step, which is enqueued task by
                                  ///< task
  int64_t steps = 5;              ///< timed, at least 1
};

/// Rows of experts that come to an emulated rank, beside those of equal loads, if its routers'
/// choices are given (RoutingUse::kGiven).
struct EmulatedLoad {
  double mean = 1;   ///< over layers and microbatches
  double worst = 1;  ///< the most: the least moe.capacity with room for all
};

/// Of a rank whose peers route as it does. With moe.force_skew it is the busiest one of its layers,
/// for which the others wait, and which can be simulated by SimulatedRun::set_routed_load. Nothing
/// if routers choose by scores. Throws ConfigError naming moe.capacity if rows would lack room, and
/// as `make_routing_source`.
std::optional<EmulatedLoad> emulated_load(const RunPlan& plan, int rank);

/// One rank of a run, executed without the others.
struct RankEmulation {
  std::vector<int64_t> step_ns;  ///< of the timed steps, each from the end of the previous one
  Timeline timeline;             ///< of one additional step, which was traced; contains only this
                                 ///< rank
  int64_t planned_bytes = 0;     ///< MemoryPlan::peak_bytes of the rank in the run
  int64_t lasting_bytes = 0;     ///< in addition, for results that are produced only once
                                 ///< (memory_with)
  int64_t allocated_bytes = 0;   ///< by the executor, for both
  /// Decrease of the free memory reported by a GPU's driver: the total use, including libraries,
  /// graphs and the emulation itself.
  std::optional<int64_t> driver_bytes;
  std::optional<EmulatedLoad> load;
  std::vector<std::string> notes;  ///< Executor::notes

  int64_t median_step_ns() const;
};

/// Runs training steps of one rank at full size: its programs, memory and kernels, with fresh
/// weights and random tokens, while `peers` emulate the other ranks. `plan` contains that rank.
/// Losses are meaningless, since the data of other ranks are made up. Times and memory are those of
/// the real rank as far as the peers' times are accurate. Throws ConfigError if the rank does not
/// fit into the GPU, and DeviceError as its executor.
RankEmulation emulate_rank(const RunPlan& plan, int rank, const EmulatedPeers& peers,
                           const RankEmulationOptions& options);

}  // namespace braid
