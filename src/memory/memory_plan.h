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

/// The planned size of the buffer: its size, rounded up to a multiple of the alignment.
int64_t aligned_bytes(const Buffer& buffer);

/// The offsets of the step buffers of one program, and the quality of the packing.
struct StepPlan {
  std::vector<int64_t> offset_bytes;  ///< by BufferId: in the persistent arena for persistent
                                      ///< buffers, in the host arena for step buffers on the host,
                                      ///< otherwise in the step arena. 0 for step buffers that no
                                      ///< task touches: they take no memory
  int64_t arena_bytes = 0;            ///< bytes of the step arena that this program needs
  int64_t max_live_bytes = 0;  ///< lower bound: largest sum of step buffers that all interfere
  std::unordered_map<BufferRole, int64_t>
      peak_by_role;                 ///< step bytes by role at the moment of the peak of live bytes
  int64_t host_arena_bytes = 0;     ///< like arena_bytes, for step buffers on the host
  int64_t host_max_live_bytes = 0;  ///< like max_live_bytes, for step buffers on the host
};

/// Offsets for all programs that share one executor (training, evaluation). Persistent buffers are
/// shared by name. The programs use the same step arena, and the same arena of step buffers on the
/// host, at different times. The plan contains every byte that a step touches; nothing is allocated
/// while a step runs.
struct MemoryPlan {
  int64_t persistent_bytes = 0;
  int64_t step_bytes = 0;  ///< max of StepPlan::arena_bytes
  int64_t host_bytes = 0;  ///< max of StepPlan::host_arena_bytes
  std::unordered_map<std::string, int64_t> persistent_offset_bytes;
  std::unordered_map<BufferRole, int64_t> persistent_by_role;
  std::vector<StepPlan> programs;

  /// Peak bytes on the device.
  int64_t peak_bytes() const { return persistent_bytes + step_bytes; }
};

/// Plans the memory of programs that have their events (after `insert_events`). Two step buffers
/// may share bytes only if all accesses of one happen before all accesses of the other in the order
/// given by streams and events, so a plan adds no dependency and cannot cause a race. The search
/// stops within half a percent, or 64 KiB, of `max_live_bytes`, or after about half a second, which
/// is counted in steps: a plan depends only on its programs; programs that are equal except for
/// names get equal offsets. Offsets are multiples of kBufferAlignmentBytes. Step buffers on the
/// host (Placement::kHost) are placed in a separate arena by the same rules. Throws InternalError
/// if persistent buffers of one name differ in dtype or size, or for a persistent buffer on the
/// host.
MemoryPlan plan_memory(std::span<const Program* const> programs);

/// A table of the plan by class, for people, one line per class. It ends with the peak, and with
/// the host memory if the programs use any.
std::string describe_plan(const MemoryPlan& plan);

}  // namespace braid
