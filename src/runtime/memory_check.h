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

/// Total GPU memory of each rank: ranks that share a GPU (runtime.ranks_per_gpu) have equal parts.
struct GpuMemory {
  std::string name;          ///< for people: "the NVIDIA H200", "a device of 80.0 GiB"
  int64_t free_bytes = 0;    ///< free now, or the total
  bool has_context = false;  ///< the contexts of its ranks already exist, and are not in free_bytes
  const Backend* backend = &gpu_backend();
};

/// Memory of a device of the analytic model; nullopt for a CPU, whose size is a guess that ranks
/// share.
std::optional<GpuMemory> memory_of(const DeviceSpec& device);

/// The memory available to a run.
struct RunMemory {
  std::optional<GpuMemory> gpu;       ///< none: on the CPU
  std::optional<int64_t> host_bytes;  ///< free on the host; none: unknown, and not checked
  int threads_per_rank = 1;           ///< on the CPU: kernels have scratch per thread
  std::vector<int> host_ranks = {};   ///< that share the host; empty: all ranks of the run
};

/// Free memory of this machine for a run on that device, with a context on its GPU if it has one:
/// if other processes share the GPU, after their contexts exist, too. Throws DeviceError.
RunMemory free_memory(const Device& device, int threads_per_rank);

/// The use of one memory: needed and free bytes.
struct MemoryUse {
  MemoryNeeds needs;
  std::string owner;        ///< "the NVIDIA H200", "this machine"
  std::string kind;         ///< "GPU memory", "memory"
  std::optional<int> rank;  ///< of a GPU: its rank
  int64_t free_bytes = 0;

  bool fits() const { return needs.bytes() <= free_bytes; }
};

/// The first and the last rank of each pipeline stage, ascending: shards of ranks between them have
/// the same size, so these ranks determine whether a run fits.
std::vector<int> edge_ranks(const Mesh& mesh);

/// The GPU of the planned rank that needs most, or the host of a run on the CPU; also the host of a
/// run on GPUs.
std::vector<MemoryUse> memory_uses(const RunPlan& plan, const RunMemory& memory);

/// Lines for people: "fits     61.2 GiB of 80.0 GiB in a device of 80.0 GiB: rank 0, weights ...",
/// or "does not fit: ...".
std::string describe_uses(const std::vector<MemoryUse>& uses);

/// "rank 0 needs 92.3 GiB of GPU memory, the NVIDIA H200 has 80.0 GiB free: weights ..., ...".
std::string describe_shortage(const MemoryUse& use);

/// Throws ConfigError unless the run of this plan fits, with needed and free memory, by class, and
/// the nearest setting that fits. To find it, plans runs with the settings of smaller_settings.h,
/// each of which takes as long as planning two ranks per pipeline stage. If none fits, names the
/// largest class.
void check_memory(const RunPlan& plan, const RunMemory& memory);

}  // namespace braid
