#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/program.h"

namespace braid {

inline constexpr int64_t kBufferAlignmentBytes = 256;

/// What a plan gives the buffer: its size, to the next multiple of the alignment.
int64_t aligned_bytes(const Buffer& buffer);

/// Where the step buffers of one program lie, and how good that is.
struct StepPlan {
  std::vector<int64_t> offset_bytes;  ///< by BufferId; in the persistent arena for persistent
                                      ///< buffers, else in the step arena, or in the host arena for
                                      ///< those on the host; 0 for step buffers that no task
                                      ///< touches, which take no memory
  int64_t arena_bytes = 0;            ///< bytes of the step arena that this program needs
  int64_t max_live_bytes = 0;  ///< lower bound: largest sum of simultaneously live step buffers
  std::unordered_map<BufferRole, int64_t>
      peak_by_role;                 ///< step bytes by role at the moment of the peak of live bytes
  int64_t host_arena_bytes = 0;     ///< as arena_bytes, of step buffers on the host
  int64_t host_max_live_bytes = 0;  ///< as max_live_bytes, of step buffers on the host
};

/// Offsets for all programs that share one executor (training, evaluation): persistent buffers are
/// shared by name, the step arena is shared in time, and so is the arena of step buffers on the
/// host. Every byte a step touches is in here; nothing is allocated while a step runs.
struct MemoryPlan {
  int64_t persistent_bytes = 0;
  int64_t step_bytes = 0;  ///< max of StepPlan::arena_bytes
  int64_t host_bytes = 0;  ///< max of StepPlan::host_arena_bytes
  std::unordered_map<std::string, int64_t> persistent_offset_bytes;
  std::unordered_map<BufferRole, int64_t> persistent_by_role;
  std::vector<StepPlan> programs;

  /// On the device.
  int64_t peak_bytes() const { return persistent_bytes + step_bytes; }
};

/// Plans the memory of programs that have their events (after `insert_events`).
/// Two step buffers may share bytes only if all accesses of one happen before all accesses of the
/// other in the order given by streams and events; so a plan adds no dependency and cannot cause a
/// race. A step arena is within half a percent, or 64 KiB, of `max_live_bytes` where half a second
/// of search can bring it there, and a plan depends on nothing but its programs. Offsets are
/// multiples of kBufferAlignmentBytes. Step buffers on the host (Placement::kHost) are placed in an
/// arena of their own by the same rules. Ranks whose programs are equal, names aside, get equal
/// offsets. Throws InternalError if persistent buffers
/// of one name differ in dtype or size, or for a persistent buffer on the host.
MemoryPlan plan_memory(std::span<const Program* const> programs);

/// Table of the plan by class for people, one line each, ending with the peak, and the memory of
/// the host if the programs use any.
std::string describe_plan(const MemoryPlan& plan);

}  // namespace braid
