#include "memory/memory_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "memory/known_plans.h"
#include "memory/live_ranges.h"
#include "memory/pack_buffers.h"
#include "memory/quick_plan.h"

namespace braid {

int64_t aligned_bytes(const Buffer& buffer) {
  return (buffer.size_bytes() + kBufferAlignmentBytes - 1) / kBufferAlignmentBytes *
         kBufferAlignmentBytes;
}

namespace {

void check_same_content(const Buffer& known, const Buffer& buffer) {
  check(known.dtype == buffer.dtype && known.size_bytes() == buffer.size_bytes(),
        "persistent buffer {} is {}{} in one program and {}{} in another", buffer.name,
        dtype_name(known.dtype), to_string(known.shape), dtype_name(buffer.dtype),
        to_string(buffer.shape));
}

/// Places persistent buffers one after the other in order of first appearance.
void place_persistent(std::span<const Program* const> programs, MemoryPlan& plan) {
  std::unordered_map<std::string_view, const Buffer*> known;
  for (const Program* program : programs) {
    for (const Buffer& buffer : program->buffers) {
      if (buffer.lifetime != Lifetime::kPersistent) {
        continue;
      }
      check(buffer.placement != Placement::kHost,
            "persistent buffer {} is to lie on the host: only step buffers may", buffer.name);
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

/// Sizes of the buffers in one memory (host or device); 0 for buffers in the other, so that a
/// packing ignores them.
std::vector<int64_t> sizes_in(const Program& program, bool on_host) {
  std::vector<int64_t> sizes_bytes(program.buffers.size());
  for (size_t index = 0; index < program.buffers.size(); ++index) {
    const Buffer& buffer = program.buffers[index];
    if ((buffer.placement == Placement::kHost) == on_host) {
      sizes_bytes[index] = aligned_bytes(buffer);
    }
  }
  return sizes_bytes;
}

BoundedPacking pack(const Program& program, const TaskOrder& order, const LiveRanges& ranges,
                    bool on_host, int64_t search_ns) {
  return pack_buffers(program, order, ranges, sizes_in(program, on_host), search_ns);
}

void place_on_device(const Program& program, const TaskOrder& order, const LiveRanges& ranges,
                     int64_t search_ns, StepPlan& step) {
  BoundedPacking packed = pack(program, order, ranges, /*on_host=*/false, search_ns);
  step.offset_bytes = std::move(packed.packing.offset_bytes);
  step.arena_bytes = packed.packing.arena_bytes;
  step.max_live_bytes = packed.bound.bytes;
  for (size_t role = 0; role < kNumBufferRoles; ++role) {
    if (packed.bound.by_role[role] > 0) {
      step.peak_by_role[static_cast<BufferRole>(role)] = packed.bound.by_role[role];
    }
  }
}

void place_on_host(const Program& program, const TaskOrder& order, const LiveRanges& ranges,
                   int64_t search_ns, StepPlan& step) {
  const BoundedPacking packed = pack(program, order, ranges, /*on_host=*/true, search_ns);
  step.host_arena_bytes = packed.packing.arena_bytes;
  step.host_max_live_bytes = packed.bound.bytes;
  for (size_t index = 0; index < program.buffers.size(); ++index) {
    if (program.buffers[index].placement == Placement::kHost) {
      step.offset_bytes[index] = packed.packing.offset_bytes[index];
    }
  }
}

bool uses_host(const Program& program) {
  return std::any_of(program.buffers.begin(), program.buffers.end(),
                     [](const Buffer& buffer) { return buffer.placement == Placement::kHost; });
}

/// Without offsets of persistent buffers.
StepPlan pack_step(const Program& program, int64_t search_ns) {
  const TaskOrder order(program);
  const LiveRanges ranges(program, order);
  StepPlan step;
  place_on_device(program, order, ranges, search_ns, step);
  if (uses_host(program)) {
    place_on_host(program, order, ranges, search_ns, step);
  }
  return step;
}

StepPlan pack_step(const Program& program, int64_t search_ns, KnownPlans& known) {
  const WideHash::Value key = packing_key(program);
  std::optional<StepPlan> step = known.find(key);
  if (!step) {
    step = pack_step(program, search_ns);
    known.add(key, *step);
  }
  return std::move(*step);
}

StepPlan plan_step(const Program& program, const MemoryPlan& plan, int64_t search_ns,
                   KnownPlans* known) {
  StepPlan step =
      known == nullptr ? pack_step(program, search_ns) : pack_step(program, search_ns, *known);
  for (size_t index = 0; index < program.buffers.size(); ++index) {
    const Buffer& buffer = program.buffers[index];
    if (buffer.lifetime == Lifetime::kPersistent) {
      step.offset_bytes[index] = plan.persistent_offset_bytes.at(buffer.name);
    }
  }
  return step;
}

MemoryPlan plan_with(std::span<const Program* const> programs, int64_t search_ns,
                     KnownPlans* known) {
  MemoryPlan plan;
  place_persistent(programs, plan);
  for (const Program* program : programs) {
    plan.programs.push_back(plan_step(*program, plan, search_ns, known));
    plan.step_bytes = std::max(plan.step_bytes, plan.programs.back().arena_bytes);
    plan.host_bytes = std::max(plan.host_bytes, plan.programs.back().host_arena_bytes);
  }
  return plan;
}

}  // namespace

MemoryPlan plan_memory(std::span<const Program* const> programs) {
  return plan_with(programs, kOffsetSearchNs, nullptr);
}

MemoryPlan plan_memory_with(std::span<const Program* const> programs, KnownPlans& known) {
  return plan_with(programs, kOffsetSearchNs, &known);
}

MemoryPlan plan_memory_quickly(std::span<const Program* const> programs) {
  return plan_with(programs, kQuickSearchNs, nullptr);
}

}  // namespace braid
