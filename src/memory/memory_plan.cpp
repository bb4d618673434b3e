#include "memory/memory_plan.h"

#include <algorithm>

#include "base/errors.h"
#include "memory/assign_offsets.h"
#include "memory/live_ranges.h"
#include "memory/max_live.h"

namespace braid {
namespace {

int64_t aligned_bytes(const Buffer& buffer) {
  return (buffer.size_bytes() + kBufferAlignmentBytes - 1) / kBufferAlignmentBytes *
         kBufferAlignmentBytes;
}

void check_same_content(const Buffer& known, const Buffer& buffer) {
  check(known.dtype == buffer.dtype && known.size_bytes() == buffer.size_bytes(),
        "persistent buffer {} is {}{} in one program and {}{} in another", buffer.name,
        dtype_name(known.dtype), to_string(known.shape), dtype_name(buffer.dtype),
        to_string(buffer.shape));
}

/// Persistent buffers lie one after the other in order of first appearance.
void place_persistent(std::span<const Program* const> programs, MemoryPlan& plan) {
  std::unordered_map<std::string_view, const Buffer*> known;
  for (const Program* program : programs) {
    for (const Buffer& buffer : program->buffers) {
      check(buffer.placement != Placement::kHost, "buffer {} is to lie on the host: no plan for it",
            buffer.name);
      if (buffer.lifetime != Lifetime::kPersistent) {
        continue;
      }
      const auto [entry, is_new] = known.emplace(buffer.name, &buffer);
      if (!is_new) {
        check_same_content(*entry->second, buffer);
        continue;
      }
      plan.persistent_offset_bytes.emplace(buffer.name, plan.persistent_bytes);
      plan.persistent_by_role[buffer.role] += aligned_bytes(buffer);
      plan.persistent_bytes += aligned_bytes(buffer);
    }
  }
}

StepPlan plan_step(const Program& program, const MemoryPlan& plan) {
  const HappensBefore order(program);
  const LiveRanges ranges(program, order);
  std::vector<int64_t> sizes_bytes(program.buffers.size());
  std::transform(program.buffers.begin(), program.buffers.end(), sizes_bytes.begin(),
                 aligned_bytes);
  const MaxLive max_live = find_max_live(program, order, ranges, sizes_bytes);
  Packing packing = assign_offsets(ranges, sizes_bytes, max_live.bytes);

  StepPlan step;
  step.offset_bytes = std::move(packing.offset_bytes);
  step.arena_bytes = packing.arena_bytes;
  step.max_live_bytes = max_live.bytes;
  for (size_t role = 0; role < kNumBufferRoles; ++role) {
    if (max_live.by_role[role] > 0) {
      step.peak_by_role[static_cast<BufferRole>(role)] = max_live.by_role[role];
    }
  }
  for (size_t index = 0; index < program.buffers.size(); ++index) {
    const Buffer& buffer = program.buffers[index];
    if (buffer.lifetime == Lifetime::kPersistent) {
      step.offset_bytes[index] = plan.persistent_offset_bytes.at(buffer.name);
    }
  }
  return step;
}

}  // namespace

MemoryPlan plan_memory(std::span<const Program* const> programs) {
  MemoryPlan plan;
  place_persistent(programs, plan);
  for (const Program* program : programs) {
    plan.programs.push_back(plan_step(*program, plan));
    plan.step_bytes = std::max(plan.step_bytes, plan.programs.back().arena_bytes);
  }
  return plan;
}

}  // namespace braid
