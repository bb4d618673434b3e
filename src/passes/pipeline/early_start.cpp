#include "passes/pipeline/early_start.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ir/dependencies.h"
#include "passes/rearrange.h"

namespace braid {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

/// Sorts by the new place, and at one place by program order. Checks the starts.
std::vector<EarlyStart> in_order(const Program& program, std::span<const EarlyStart> starts) {
  std::vector<EarlyStart> sorted(starts.begin(), starts.end());
  std::ranges::sort(sorted, [](const EarlyStart& a, const EarlyStart& b) {
    return std::pair(a.before.value, a.task.value) < std::pair(b.before.value, b.task.value);
  });
  std::vector<bool> seen(program.tasks.size());
  for (const EarlyStart& start : sorted) {
    check(start.task.value < seen.size() && start.before.value <= start.task.value &&
              start.stream.value < program.streams.size(),
          "task #{} cannot start in front of task #{} on stream #{}", start.task.value,
          start.before.value, start.stream.value);
    check(!seen[start.task.index()], "task #{} is to start twice", start.task.value);
    seen[start.task.index()] = true;
  }
  return sorted;
}

/// By buffer: the first task that writes to it, or kNone.
std::vector<uint32_t> first_writers(const Program& program) {
  std::vector<uint32_t> first(program.buffers.size(), kNone);
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    const auto ranges = program.operands_of(program.tasks[task]);
    const auto& specs = program.spec(program.tasks[task]).operands;
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (writes(specs[i].access)) {
        uint32_t& writer = first[ranges[i].buffer.index()];
        writer = std::min(writer, task);
      }
    }
  }
  return first;
}

/// The new order of tasks, in the form that `rearrange` takes.
class Arrangement {
 public:
  Arrangement(const Program& program, std::span<const EarlyStart> starts,
              const DependencyGraph& dependencies)
      : program_(program),
        first_writer_(first_writers(program)),
        position_(program.tasks.size(), kNone) {
    std::vector<bool> starts_early(program.tasks.size());
    for (const EarlyStart& start : starts) {
      starts_early[start.task.index()] = true;
    }
    order_.reserve(program.tasks.size());
    auto next = starts.begin();
    for (uint32_t task = 0; task < program.tasks.size(); ++task) {
      const auto end = std::find_if(
          next, starts.end(), [&](const EarlyStart& start) { return start.before.value != task; });
      place({next, end});
      next = end;
      if (!starts_early[task]) {
        place(task);
      }
    }
    check_order(starts, dependencies);
  }

  const std::vector<TaskId>& order() const { return order_; }
  const std::vector<HandOver>& hand_overs() const { return hand_overs_; }

 private:
  void place(std::span<const EarlyStart> starts) {
    for (const EarlyStart& start : starts) {
      hand_over(start);
    }
    for (const EarlyStart& start : starts) {
      place(start.task.value);
    }
  }

  void place(uint32_t task) {
    position_[task] = static_cast<uint32_t>(order_.size());
    order_.emplace_back(task);
  }

  /// Adds an `undefine` for each buffer whose memory the other stream takes over here.
  void hand_over(const EarlyStart& start) {
    const Task& task = program_.tasks[start.task.index()];
    if (task.stream == start.stream) {
      return;
    }
    // An `undefine` does not communicate, so its phase is never comm.
    Label label = task.label;
    label.phase = program_.tasks[start.before.index()].label.phase;
    label.phase = label.phase == Phase::kComm ? Phase::kForward : label.phase;
    const auto ranges = program_.operands_of(task);
    const auto& specs = program_.spec(task).operands;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Buffer& buffer = program_.buffers[ranges[i].buffer.index()];
      if (specs[i].access == Access::kWrite && buffer.lifetime == Lifetime::kStep &&
          ranges[i].begin == 0 && ranges[i].end == buffer.num_elems() &&
          first_writer_[ranges[i].buffer.index()] == start.task.value) {
        hand_overs_.push_back(
            {ranges[i].buffer, static_cast<uint32_t>(order_.size()), task.stream, label});
      }
    }
  }

  void check_order(std::span<const EarlyStart> starts, const DependencyGraph& dependencies) const {
    for (const EarlyStart& start : starts) {
      for (const TaskId earlier : dependencies.of(start.task)) {
        if (position_[earlier.index()] >= position_[start.task.index()]) {
          throw_internal_error(
              "task #{} ({}) cannot start in front of task #{}: it depends on task #{} ({})",
              start.task.value, describe_task(program_, start.task), start.before.value,
              earlier.value, describe_task(program_, earlier));
        }
      }
    }
  }

  const Program& program_;
  std::vector<uint32_t> first_writer_;  // by buffer
  std::vector<uint32_t> position_;      // by task: its place in order_
  std::vector<TaskId> order_;
  std::vector<HandOver> hand_overs_;
};

}  // namespace

Program start_early(Program program, std::span<const EarlyStart> starts) {
  if (starts.empty()) {
    return program;
  }
  const std::vector<EarlyStart> sorted = in_order(program, starts);
  const DependencyGraph dependencies = build_dependencies(program);
  const Arrangement arrangement(program, sorted, dependencies);
  for (const EarlyStart& start : sorted) {
    program.tasks[start.task.index()].stream = start.stream;
  }
  return rearrange(std::move(program), arrangement.order(), arrangement.hand_overs(), dependencies);
}

}  // namespace braid
