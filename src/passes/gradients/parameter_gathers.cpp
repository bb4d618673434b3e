#include "passes/gradients/parameter_gathers.h"

#include <algorithm>
#include <iterator>

#include "memory/memory_plan.h"
#include "ops/op.h"

namespace braid {
namespace {

constexpr uint32_t kNone = BufferUses::kNone;

using Access = BufferAccesses::Access;

/// The first access behind the task.
std::span<const Access>::iterator behind(std::span<const Access> all, uint32_t task) {
  return std::ranges::upper_bound(all, task, {}, &Access::task);
}

bool covers(const Program& program, const BufferRange& range) {
  return range.begin == 0 && range.end == program.buffers[range.buffer.index()].num_elems();
}

bool gathers(const Program& program, const Task& task) {
  return communicates_as(program.spec(task), CommOp::kAllGather) &&
         task.label.phase == Phase::kComm &&
         program.streams[task.stream.index()].kind == StreamKind::kCompute;
}

/// Whether both gather, and the one behind reads exactly what this one writes.
bool brings_what_next_reads(const Program& program, uint32_t task) {
  if (task + 1 >= program.tasks.size()) {
    return false;
  }
  const Task& it = program.tasks[task];
  const Task& next = program.tasks[task + 1];
  return gathers(program, it) && gathers(program, next) &&
         program.operands_of(it)[1] == program.operands_of(next)[0];
}

std::optional<ParameterGather> gather_at(const Program& program, const BufferAccesses& accesses,
                                         uint32_t task) {
  const Task& it = program.tasks[task];
  if (!gathers(program, it) || brings_what_next_reads(program, task)) {
    return std::nullopt;
  }
  const auto ranges = program.operands_of(it);
  const Buffer& to = program.buffers[ranges[1].buffer.index()];
  const bool is_step_buffer = to.role == BufferRole::kGathered && to.lifetime == Lifetime::kStep;
  const bool is_updated = to.role == BufferRole::kParam && to.lifetime == Lifetime::kPersistent;
  if (!(is_step_buffer || is_updated) || !covers(program, ranges[1])) {
    return std::nullopt;
  }
  ParameterGather gather{.task = task,
                         .from = ranges[0],
                         .to = ranges[1].buffer,
                         .is_step_buffer = is_step_buffer,
                         .is_of_step = is_updated || it.label.microbatch < 0,
                         .first_use = accesses.next(ranges[1].buffer, task)};
  gather.last_use = accesses.last(gather.to);
  if (task > 0 && brings_what_next_reads(program, task - 1)) {
    gather.before = task - 1;
    gather.parts = program.operands_of(program.tasks[task - 1])[0].buffer;
  }
  const bool is_whole_life =
      accesses.first(gather.to) == task && !accesses.is_written_behind(gather.to, task);
  if (gather.first_use == kNone || (is_step_buffer && !is_whole_life)) {
    return std::nullopt;  // not used in this step, or the memory holds something else as well
  }
  return gather;
}

}  // namespace

BufferAccesses::BufferAccesses(const Program& program) : of_buffer_(program.buffers.size()) {
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    const auto ranges = program.operands_of(program.tasks[task]);
    const auto& specs = program.spec(program.tasks[task]).operands;
    for (size_t i = 0; i < ranges.size(); ++i) {
      of_buffer_[ranges[i].buffer.index()].push_back({task, writes(specs[i].access)});
    }
  }
}

uint32_t BufferAccesses::next(BufferId buffer, uint32_t task) const {
  const std::span<const Access> all = of(buffer);
  const auto found = behind(all, task);
  return found == all.end() ? kNone : found->task;
}

uint32_t BufferAccesses::previous(BufferId buffer, uint32_t task) const {
  const std::span<const Access> all = of(buffer);
  const auto found = std::ranges::lower_bound(all, task, {}, &Access::task);
  return found == all.begin() ? kNone : std::prev(found)->task;
}

uint32_t BufferAccesses::previous_write(BufferId buffer, uint32_t task) const {
  const std::span<const Access> all = of(buffer);
  auto at = std::ranges::lower_bound(all, task, {}, &Access::task);
  while (at != all.begin()) {
    if (std::prev(at)->writes) {
      return std::prev(at)->task;
    }
    --at;
  }
  return kNone;
}

bool BufferAccesses::is_written_behind(BufferId buffer, uint32_t task) const {
  const std::span<const Access> all = of(buffer);
  return std::any_of(behind(all, task), all.end(),
                     [](const Access& access) { return access.writes; });
}

ParameterGathers::ParameterGathers(const Program& program) : program_(program), accesses_(program) {
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    if (const auto gather = gather_at(program, accesses_, task)) {
      add(*gather);
    }
  }
}

void ParameterGathers::add(ParameterGather gather) {
  const auto same = std::find_if(group_begin(), list_.end(), [&](const ParameterGather& before) {
    return repeats(before, gather);
  });
  if (same != list_.end()) {
    same->last_use = gather.last_use;
    repeated_.emplace_back(gather, same->to);
  } else {
    if (begins_group(gather)) {
      groups_.push_back({.begin = list_.size()});
    }
    gather.group = groups_.size() - 1;
    list_.push_back(gather);
    groups_.back().first_use = std::min(groups_.back().first_use, gather.first_use);
    groups_.back().bytes +=
        gather.is_step_buffer ? aligned_bytes(program_.buffers[gather.to.index()]) : 0;
  }
  groups_.back().last_use = std::max(groups_.back().last_use, gather.last_use);
}

std::vector<ParameterGather>::iterator ParameterGathers::group_begin() {
  return groups_.empty() ? list_.end()
                         : list_.begin() + static_cast<ptrdiff_t>(groups_.back().begin);
}

/// Whether it is of another layer or job than the gathers before it.
bool ParameterGathers::begins_group(const ParameterGather& gather) {
  if (list_.empty()) {
    return true;
  }
  const Label& before = program_.tasks[list_.back().task].label;
  const Label& its = program_.tasks[gather.task].label;
  return its.layer < 0 || its.layer != before.layer || its.microbatch != before.microbatch ||
         its.virtual_stage != before.virtual_stage ||
         std::any_of(group_begin(), list_.end(),
                     [&](const ParameterGather& other) { return other.from == gather.from; });
}

bool ParameterGathers::repeats(const ParameterGather& before, const ParameterGather& gather) const {
  const Task& a = program_.tasks[before.task];
  const Task& b = program_.tasks[gather.task];
  const uint32_t written = accesses_.previous_write(gather.from.buffer, gather.task);
  return before.is_step_buffer && gather.is_step_buffer && a.spec == b.spec &&
         before.from == gather.from && (written == kNone || written < before.task);
}

Program without_gathers(const Program& program,
                        std::span<const std::pair<ParameterGather, BufferId>> repeated) {
  std::vector<bool> drops(program.tasks.size());
  std::vector<BufferId> replacement(program.buffers.size());
  for (const auto& [gather, same] : repeated) {
    drops[gather.task] = true;
    replacement[gather.to.index()] = same;
  }
  std::vector<TaskId> kept;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    if (!drops[i]) {
      kept.emplace_back(i);
    }
  }
  Program result = select_tasks(program, kept);
  for (BufferRange& range : result.operands) {
    if (const BufferId same = replacement[range.buffer.index()]; same.valid()) {
      range.buffer = same;
    }
  }
  return result;
}

}  // namespace braid
