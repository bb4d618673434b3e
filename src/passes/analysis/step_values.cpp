#include "passes/analysis/step_values.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "ops/offload.h"

namespace braid {
namespace {

struct BlockKey {
  int32_t microbatch;
  int32_t virtual_stage;
  int32_t layer;
  friend bool operator==(const BlockKey&, const BlockKey&) = default;
};

struct HashBlockKey {
  size_t operator()(const BlockKey& key) const {
    uint64_t hash = static_cast<uint32_t>(key.microbatch);
    for (const int32_t part : {key.virtual_stage, key.layer}) {
      hash = (hash ^ static_cast<uint32_t>(part)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return static_cast<size_t>(hash);
  }
};

bool is_gradient(Phase phase) {
  return phase == Phase::kDgrad || phase == Phase::kWgrad;
}

}  // namespace

bool moves_value(const Program& program, const Task& task) {
  const auto ranges = program.operands_of(task);
  return does_nothing(program.spec(task)) ||
         std::any_of(ranges.begin(), ranges.end(), [&](const BufferRange& range) {
           return program.buffers[range.buffer.index()].placement == Placement::kHost;
         });
}

StepValues::StepValues(const Program& program) : program_(program) {
  find_blocks();
  find_writers();
  find_values();
}

void StepValues::find_blocks() {
  std::unordered_map<BlockKey, uint32_t, HashBlockKey> known;
  const auto num_tasks = static_cast<uint32_t>(program_.tasks.size());
  block_of_.resize(num_tasks);
  uint32_t before = kNone;  // the last task that computes
  for (uint32_t task = 0; task < num_tasks; ++task) {
    const Label& label = program_.tasks[task].label;
    const auto [entry, is_new] =
        known.try_emplace({label.microbatch, label.virtual_stage, label.layer},
                          static_cast<uint32_t>(blocks_.size()));
    if (is_new) {
      blocks_.push_back({label.microbatch, label.virtual_stage, label.layer});
    }
    block_of_[task] = entry->second;
    Block& block = blocks_[entry->second];
    block.last = task;
    if (!moves_value(program_, program_.tasks[task])) {
      extend(block, task, before);
      before = task;
    }
  }
  find_forward();
}

/// `before`: the previous task that computes, or kNone.
void StepValues::extend(Block& block, uint32_t task, uint32_t before) {
  const Phase phase = program_.tasks[task].label.phase;
  if (is_gradient(phase) && block.first_dgrad == kNone) {
    block.first_dgrad = task;
  }
  const bool goes_on = phase == Phase::kComm && before != kNone && block.forward_end == before;
  if (block.first_dgrad == kNone && (phase == Phase::kForward || goes_on)) {
    block.forward_end = task;
  }
}

void StepValues::find_forward() {
  is_forward_.resize(program_.tasks.size());
  for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
    const Phase phase = program_.tasks[task].label.phase;
    const Block& block = blocks_[block_of_[task]];
    is_forward_[task] = (phase == Phase::kForward || phase == Phase::kComm) &&
                        block.forward_end != kNone && task <= block.forward_end;
  }
}

int64_t StepValues::num_backwards() const {
  std::set<std::pair<int32_t, int32_t>> found;
  for (const Block& block : blocks_) {
    if (block.layer >= 0 && block.first_dgrad != kNone && block.forward_end != kNone) {
      found.emplace(block.microbatch, block.virtual_stage);
    }
  }
  return std::max<int64_t>(1, static_cast<int64_t>(found.size()));
}

void StepValues::find_writers() {
  row_begin_.assign(program_.buffers.size() + 1, 0);
  const auto for_each_write = [&](const auto& visit) {
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      const auto ranges = program_.operands_of(program_.tasks[task]);
      const auto& specs = program_.spec(program_.tasks[task]).operands;
      for (size_t i = 0; i < ranges.size(); ++i) {
        if (writes(specs[i].access)) {
          visit(ranges[i].buffer.index(), task);
        }
      }
    }
  };
  for_each_write([&](size_t buffer, uint32_t) { ++row_begin_[buffer + 1]; });
  for (size_t i = 1; i < row_begin_.size(); ++i) {
    row_begin_[i] += row_begin_[i - 1];
  }
  writers_.resize(row_begin_.back());
  std::vector<uint32_t> next(row_begin_.begin(), row_begin_.end() - 1);
  for_each_write([&](size_t buffer, uint32_t task) { writers_[next[buffer]++] = task; });
}

std::span<const uint32_t> StepValues::writers(BufferId buffer) const {
  return {writers_.data() + row_begin_[buffer.index()],
          writers_.data() + row_begin_[buffer.index() + 1]};
}

bool StepValues::is_written_between(BufferId buffer, uint32_t after, uint32_t until) const {
  const auto of_buffer = writers(buffer);
  const auto next = std::upper_bound(of_buffer.begin(), of_buffer.end(), after);
  return next != of_buffer.end() && *next <= until;
}

void StepValues::find_values() {
  values_.resize(program_.buffers.size());
  for (size_t i = 0; i < values_.size(); ++i) {
    const auto of_buffer = writers(BufferId(i));
    if (program_.buffers[i].lifetime != Lifetime::kStep || of_buffer.empty()) {
      continue;
    }
    const uint32_t block = block_of_[of_buffer.front()];
    if (std::all_of(of_buffer.begin(), of_buffer.end(),
                    [&](uint32_t task) { return is_forward_[task] && block_of_[task] == block; })) {
      values_[i].block = block;
    }
  }
  for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
    for (const BufferRange& range : program_.operands_of(program_.tasks[task])) {
      const auto of_buffer = writers(range.buffer);
      const bool is_writer = std::binary_search(of_buffer.begin(), of_buffer.end(), task);
      add_use(task, range.buffer, is_writer);
    }
  }
}

void StepValues::add_use(uint32_t task, BufferId buffer, bool is_writer) {
  Value& value = values_[buffer.index()];
  if (!value.is_value()) {
    return;
  }
  if (!is_writer && task < writers(buffer).back()) {
    value = {};  // a task reads it before it is complete
    return;
  }
  if (is_forward_[task]) {
    value.last_forward = task;
    return;
  }
  value.first_backward = std::min(value.first_backward, task);
  value.last_backward = task;
  value.is_shared |= block_of_[task] != value.block;
}

}  // namespace braid
