#include "memory/known_plans.h"

namespace braid {

WideHash::Value packing_key(const Program& program) {
  WideHash hash;
  hash.add(program.streams.size());
  hash.add(uint64_t{program.num_events});
  hash.add(program.buffers.size());
  for (const Buffer& buffer : program.buffers) {
    hash.add(static_cast<uint64_t>(aligned_bytes(buffer)));
    hash.add(buffer.role);
    hash.add(buffer.lifetime);
    hash.add(buffer.placement);
  }
  for (const Task& task : program.tasks) {
    hash.add(uint64_t{task.stream.value});
    hash.add(uint64_t{task.record.value});
    hash.add(uint64_t{task.num_waits});
    for (const EventId event : program.waits_of(task)) {
      hash.add(uint64_t{event.value});
    }
    const auto operands = program.operands_of(task);
    hash.add(operands.size());
    for (const BufferRange& range : operands) {
      hash.add(uint64_t{range.buffer.value} * 2 + (range.begin == range.end ? 1 : 0));
    }
  }
  return hash.value();
}

std::optional<StepPlan> KnownPlans::find(const WideHash::Value& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = plans_.find(key);
  return found == plans_.end() ? std::nullopt : std::optional(found->second);
}

void KnownPlans::add(const WideHash::Value& key, const StepPlan& plan) {
  const std::lock_guard lock(mutex_);
  plans_.try_emplace(key, plan);
}

}  // namespace braid
