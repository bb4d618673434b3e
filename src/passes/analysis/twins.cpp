#include "passes/analysis/twins.h"

#include <algorithm>

namespace braid {

Twins::Twins(const Program& program, const StepValues& values)
    : program_(program), values_(values) {
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    if (values.is_forward(task)) {
      continue;
    }
    if (const Gather gather = gather_of(task); gather.result.valid()) {
      backward_[key_of(task, gather.source)].push_back(task);
    }
  }
}

uint32_t Twins::find(BufferId buffer, uint32_t after, uint32_t before) const {
  const auto writers = values_.writers(buffer);
  if (writers.size() != 1) {
    return kNone;
  }
  const Gather gather = gather_of(writers.front());
  if (!gather.result.valid()) {
    return kNone;
  }
  const auto found = backward_.find(key_of(writers.front(), gather.source));
  if (found == backward_.end()) {
    return kNone;
  }
  const auto next = std::lower_bound(found->second.begin(), found->second.end(), before);
  if (next == found->second.begin() || *std::prev(next) <= after ||
      values_.is_written_between(gather.source.buffer, writers.front(), before)) {
    return kNone;
  }
  return *std::prev(next);
}

BufferId Twins::result_of(uint32_t task) const {
  return gather_of(task).result;
}

Twins::Gather Twins::gather_of(uint32_t task) const {
  const Task& it = program_.tasks[task];
  const auto ranges = program_.operands_of(it);
  const auto& specs = program_.spec(it).operands;
  if (ranges.size() != 2 || specs[0].access != Access::kRead || specs[1].access != Access::kWrite) {
    return {};
  }
  const Buffer& source = program_.buffers[ranges[0].buffer.index()];
  const Buffer& result = program_.buffers[ranges[1].buffer.index()];
  const bool is_whole = ranges[1].begin == 0 && ranges[1].end == result.num_elems();
  const bool is_weight =
      source.lifetime == Lifetime::kPersistent || source.role == BufferRole::kParam;
  if (!is_weight || result.lifetime != Lifetime::kStep || result.role != BufferRole::kGathered ||
      !is_whole || values_.writers(ranges[1].buffer).size() != 1) {
    return {};
  }
  return {ranges[0], ranges[1].buffer};
}

Twins::Key Twins::key_of(uint32_t task, const BufferRange& source) const {
  const Task& it = program_.tasks[task];
  return {it.spec, it.label.microbatch, it.label.virtual_stage, source};
}

size_t Twins::HashKey::operator()(const Key& key) const {
  uint64_t hash = key.spec.value;
  for (const int64_t part : {int64_t{key.microbatch}, int64_t{key.virtual_stage},
                             int64_t{key.source.buffer.value}, key.source.begin, key.source.end}) {
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return static_cast<size_t>(hash);
}

}  // namespace braid
