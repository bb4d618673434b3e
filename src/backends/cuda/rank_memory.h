#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "backends/buffer_addresses.h"
#include "backends/cuda/comm/peer_memory.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/pinned_arena.h"
#include "ir/program.h"
#include "memory/memory_plan.h"

namespace braid {

/// The memory of the buffers of one rank, exactly as planned: an arena of persistent buffers, one
/// of step buffers, and one on the host. Zeroed at construction.
class RankMemory {
 public:
  /// `rank` is for errors. `persistent`: memory of persistent buffers that exists, with its content
  /// (take_persistent); nothing: they get new memory. Throws DeviceError if an allocation fails,
  /// and InternalError if that memory has another size.
  RankMemory(MemoryPlan plan, int rank, const Allocator& allocator,
             std::optional<DeviceArena> persistent = std::nullopt);
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  /// The address of each operand of program number `program_index`, parallel to Program::operands.
  /// Throws InternalError if plan and program do not fit together.
  std::vector<std::byte*> bind(const Program& program, size_t program_index);

  /// Those of the bound programs.
  const PersistentBuffers& persistent_buffers() const { return persistent_buffers_; }

  /// For another RankMemory, whose plan has the same persistent buffers. This one can then only be
  /// destroyed.
  DeviceArena take_persistent() { return std::move(persistent_); }
  const MemoryPlan& plan() const { return plan_; }

  /// The memory that other ranks may access.
  std::vector<SharedMemory> shared() const;

  /// Fills all step buffers with 0xFF, which is NaN in every floating-point type, in stream order.
  void poison_step_buffers(cudaStream_t stream);

  int64_t device_bytes() const { return persistent_.size_bytes() + step_.size_bytes(); }
  int64_t host_bytes() const { return host_.size_bytes(); }

 private:
  Arenas arenas() const { return {persistent_.data(), step_.data(), host_.data()}; }

  MemoryPlan plan_;
  DeviceArena persistent_;
  DeviceArena step_;
  PinnedArena host_;
  PersistentBuffers persistent_buffers_;
};

}  // namespace braid
