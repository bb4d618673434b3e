#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/memory_needs.h"
#include "plan/run_plan.h"
#include "runtime/device.h"
#include "sim/device_spec.h"

namespace braid {

/// Memory of the GPU of each rank, all of it: ranks that share one (runtime.ranks_per_gpu) have
/// equal parts.
struct GpuMemory {
  std::string name;          ///< for people: "the NVIDIA H200", "a device of 80.0 GiB"
  int64_t free_bytes = 0;    ///< free now, or all that there is
  bool has_context = false;  ///< contexts of its ranks are there already, not in free_bytes
  const Backend* backend = &gpu_backend();
};

/// Of a device that the analytic model knows; nothing of a CPU, whose is a guess that ranks share.
std::optional<GpuMemory> memory_of(const DeviceSpec& device);

/// Where a run is to happen.
struct RunMemory {
  std::optional<GpuMemory> gpu;       ///< none: on the CPU
  std::optional<int64_t> host_bytes;  ///< free on the host; none: not known, and not checked
  int threads_per_rank = 1;           ///< of the CPU: kernels have scratch per thread
  std::vector<int> host_ranks = {};   ///< that share the host's; none: all ranks of the run
};

/// What is free now on this machine for a run on that device, with a context on its GPU if it has
/// one: where other processes share it, when theirs are there, too. Throws DeviceError.
RunMemory free_memory(const Device& device, int threads_per_rank);

/// What one memory must hold beside what it has.
struct MemoryUse {
  MemoryNeeds needs;
  std::string owner;        ///< "the NVIDIA H200", "this machine"
  std::string kind;         ///< "GPU memory", "memory"
  std::optional<int> rank;  ///< whose GPU it is
  int64_t free_bytes = 0;

  bool fits() const { return needs.bytes() <= free_bytes; }
};

/// The first and the last rank of each pipeline stage, ascending: shards of ranks between them are
/// as large, so what they need says whether a run fits.
std::vector<int> edge_ranks(const Mesh& mesh);

/// The GPU of the planned rank that needs most, or the host of a run on the CPU; and the host of a
/// run on GPUs.
std::vector<MemoryUse> memory_uses(const RunPlan& plan, const RunMemory& memory);

/// Lines for people: "fits     61.2 GiB of 80.0 GiB in a device of 80.0 GiB: rank 0, weights ...",
/// or "does not fit: ...".
std::string describe_uses(const std::vector<MemoryUse>& uses);

/// "rank 0 needs 92.3 GiB of GPU memory, the NVIDIA H200 has 80.0 GiB free: weights ..., ...".
std::string describe_shortage(const MemoryUse& use);

/// Throws ConfigError unless the run of this plan fits: what is needed and free, by class, and the
/// nearest setting that fits. For that, runs with smaller_settings.h's settings are planned, which
/// takes as long as planning two ranks per pipeline stage that many times; where none fits, the
/// class that takes most is named.
void check_memory(const RunPlan& plan, const RunMemory& memory);

}  // namespace braid
