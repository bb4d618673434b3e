#include "backends/cuda/rank_memory.h"

#include <cstring>
#include <utility>

#include "backends/cuda/cuda_error.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr int kPoisonByte = 0xFF;

}  // namespace

RankMemory::RankMemory(MemoryPlan plan, int rank, const Allocator& allocator,
                       std::optional<DeviceArena> persistent)
    : plan_(std::move(plan)),
      persistent_(persistent
                      ? *std::move(persistent)
                      : DeviceArena(plan_.persistent_bytes,
                                    fmt::format("persistent buffers of rank {}", rank), allocator)),
      step_(plan_.step_bytes, fmt::format("step buffers of rank {}", rank), allocator),
      host_(plan_.host_bytes, fmt::format("buffers on the host of rank {}", rank)) {
  check(persistent_.size_bytes() == plan_.persistent_bytes,
        "rank {}: {} bytes of persistent buffers for a plan of {}", rank, persistent_.size_bytes(),
        plan_.persistent_bytes);
}

std::vector<std::byte*> RankMemory::bind(const Program& program, size_t program_index) {
  const StepPlan& step_plan = plan_.programs[program_index];
  persistent_buffers_.add(program, step_plan, arenas());
  return operand_addresses(program, plan_, step_plan, arenas());
}

std::vector<SharedMemory> RankMemory::shared() const {
  return {{persistent_.data(), persistent_.size_bytes()}, {step_.data(), step_.size_bytes()}};
}

void RankMemory::poison_step_buffers(cudaStream_t stream) {
  if (step_.size_bytes() > 0) {
    BRAID_CUDA_CHECK(cudaMemsetAsync(step_.data(), kPoisonByte,
                                     static_cast<size_t>(step_.size_bytes()), stream));
  }
  if (host_.size_bytes() > 0) {
    // In stream order: the previous step may still use this memory.
    const auto poison_host = [](void* arena) {
      const auto* const host = static_cast<const PinnedArena*>(arena);
      std::memset(host->data(), kPoisonByte, static_cast<size_t>(host->size_bytes()));
    };
    BRAID_CUDA_CHECK(cudaLaunchHostFunc(stream, poison_host, &host_));
  }
}

}  // namespace braid
