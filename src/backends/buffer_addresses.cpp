#include "backends/buffer_addresses.h"

#include "base/errors.h"

namespace braid {
namespace {

struct Arena {
  std::byte* data;
  int64_t size_bytes;
};

Arena arena_of(const Buffer& buffer, const MemoryPlan& plan, const Arenas& arenas) {
  if (buffer.lifetime == Lifetime::kPersistent) {
    return {arenas.persistent, plan.persistent_bytes};
  }
  return buffer.placement == Placement::kHost ? Arena{arenas.host, plan.host_bytes}
                                              : Arena{arenas.step, plan.step_bytes};
}

/// The buffers that have memory: persistent ones, which the host accesses by name, and those with
/// elements that a task touches (LiveRanges::is_used).
std::vector<bool> has_memory(const Program& program) {
  std::vector<bool> has(program.buffers.size());
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    has[i] = program.buffers[i].lifetime == Lifetime::kPersistent;
  }
  for (const BufferRange& range : program.operands) {
    if (range.begin != range.end) {
      has[range.buffer.index()] = true;
    }
  }
  return has;
}

/// The address of each buffer that has memory, checked to lie inside its arena; for other buffers
/// the start of the arena.
std::vector<std::byte*> buffer_addresses(const Program& program, const MemoryPlan& plan,
                                         const StepPlan& step_plan, const Arenas& arenas) {
  check(step_plan.offset_bytes.size() == program.buffers.size(),
        "program {} has {} buffers, its memory plan {}", program.name, program.buffers.size(),
        step_plan.offset_bytes.size());
  std::vector<std::byte*> addresses;
  addresses.reserve(program.buffers.size());
  const std::vector<bool> is_placed = has_memory(program);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    const Arena arena = arena_of(buffer, plan, arenas);
    if (!is_placed[i]) {
      addresses.push_back(arena.data);
      continue;
    }
    const int64_t offset_bytes = step_plan.offset_bytes[i];
    check(offset_bytes >= 0 && offset_bytes + buffer.size_bytes() <= arena.size_bytes,
          "program {}: buffer {} of {} bytes at offset {} is outside its arena of {} bytes",
          program.name, buffer.name, buffer.size_bytes(), offset_bytes, arena.size_bytes);
    addresses.push_back(arena.data + offset_bytes);
  }
  return addresses;
}

void check_ids(const Program& program, const Task& task) {
  check(task.stream.index() < program.streams.size(), "program {}: stream {} of {}", program.name,
        task.stream.value, program.streams.size());
  check(!task.record.valid() || task.record.index() < program.num_events,
        "program {}: event {} of {}", program.name, task.record.value, program.num_events);
  for (const EventId event : program.waits_of(task)) {
    check(event.index() < program.num_events, "program {}: event {} of {}", program.name,
          event.value, program.num_events);
  }
}

}  // namespace

std::vector<std::byte*> operand_addresses(const Program& program, const MemoryPlan& plan,
                                          const StepPlan& step_plan, const Arenas& arenas) {
  for (const Task& task : program.tasks) {
    check_ids(program, task);
  }
  const auto addresses = buffer_addresses(program, plan, step_plan, arenas);
  std::vector<std::byte*> operands;
  operands.reserve(program.operands.size());
  for (const BufferRange& range : program.operands) {
    const Buffer& buffer = program.buffers[range.buffer.index()];
    const int64_t begin = range.begin == range.end ? 0 : range.begin;  // may be past the arena
    operands.push_back(addresses[range.buffer.index()] +
                       begin * static_cast<int64_t>(dtype_bytes(buffer.dtype)));
  }
  return operands;
}

void PersistentBuffers::add(const Program& program, const StepPlan& step_plan,
                            const Arenas& arenas) {
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.lifetime != Lifetime::kPersistent) {
      continue;
    }
    const std::span<std::byte> bytes(arenas.persistent + step_plan.offset_bytes[i],
                                     static_cast<size_t>(buffer.size_bytes()));
    const auto [entry, is_new] = buffers_.emplace(buffer.name, bytes);
    check(entry->second.data() == bytes.data() && entry->second.size() == bytes.size(),
          "persistent buffer {} lies in two places", buffer.name);
  }
}

std::span<std::byte> PersistentBuffers::whole(std::string_view buffer) const {
  const auto found = buffers_.find(buffer);
  check(found != buffers_.end(), "there is no persistent buffer named {}", buffer);
  return found->second;
}

std::span<std::byte> PersistentBuffers::range(std::string_view buffer, int64_t offset_bytes,
                                              size_t size_bytes) const {
  const std::span<std::byte> bytes = whole(buffer);
  check(offset_bytes >= 0 && static_cast<size_t>(offset_bytes) <= bytes.size() &&
            size_bytes <= bytes.size() - static_cast<size_t>(offset_bytes),
        "{} bytes at offset {} are outside buffer {} of {} bytes", size_bytes, offset_bytes, buffer,
        bytes.size());
  return bytes.subspan(static_cast<size_t>(offset_bytes), size_bytes);
}

}  // namespace braid
