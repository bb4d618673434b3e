#include "passes/early_start.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ir/dependencies.h"
#include "ops/offload.h"

namespace braid {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

/// By the place at which they begin, and there in program order.
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

class Rewriter {
 public:
  Rewriter(const Program& program, std::vector<EarlyStart> starts)
      : program_(program),
        starts_(std::move(starts)),
        first_writer_(first_writers(program)),
        result_(select_tasks(program, {})),
        position_(program.tasks.size(), kNone) {
    result_.tasks.reserve(program.tasks.size() + starts_.size());
    result_.operands.reserve(program.operands.size() + starts_.size());
  }

  Program run() {
    std::vector<bool> starts_early(program_.tasks.size());
    for (const EarlyStart& start : starts_) {
      starts_early[start.task.index()] = true;
    }
    auto next = starts_.begin();
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      const auto end = std::find_if(
          next, starts_.end(), [&](const EarlyStart& start) { return start.before.value != task; });
      append_starts({next, end});
      next = end;
      if (!starts_early[task]) {
        append(task, program_.tasks[task].stream);
      }
    }
    check_order();
    return std::move(result_);
  }

 private:
  void append_starts(std::span<const EarlyStart> starts) {
    for (const EarlyStart& start : starts) {
      hand_over(start);
    }
    for (const EarlyStart& start : starts) {
      append(start.task.value, start.stream);
    }
  }

  /// An `undefine` for each buffer whose memory the other stream takes over here.
  void hand_over(const EarlyStart& start) {
    const Task& task = program_.tasks[start.task.index()];
    if (task.stream == start.stream) {
      return;
    }
    const auto ranges = program_.operands_of(task);
    const auto& specs = program_.spec(task).operands;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Buffer& buffer = program_.buffers[ranges[i].buffer.index()];
      if (specs[i].access == Access::kWrite && buffer.lifetime == Lifetime::kStep &&
          ranges[i].begin == 0 && ranges[i].end == buffer.num_elems() &&
          first_writer_[ranges[i].buffer.index()] == start.task.value) {
        append_undefine(ranges[i], task, program_.tasks[start.before.index()].label.phase);
      }
    }
  }

  /// Not a communication, whatever it is that the memory is for.
  void append_undefine(const BufferRange& range, const Task& for_task, Phase phase_there) {
    Task task = for_task;
    task.spec = result_.specs.intern(undefine_spec(program_.buffers[range.buffer.index()]));
    task.label.phase = phase_there == Phase::kComm ? Phase::kForward : phase_there;
    append(task, {&range, 1});
  }

  void append(uint32_t position, StreamId stream) {
    position_[position] = static_cast<uint32_t>(result_.tasks.size());
    Task task = program_.tasks[position];
    const auto ranges = program_.operands_of(task);
    task.stream = stream;
    append(task, ranges);
  }

  void append(Task task, std::span<const BufferRange> ranges) {
    task.operands_begin = static_cast<uint32_t>(result_.operands.size());
    task.record = EventId();
    task.waits_begin = 0;
    task.num_waits = 0;
    result_.operands.insert(result_.operands.end(), ranges.begin(), ranges.end());
    result_.tasks.push_back(task);
  }

  void check_order() const {
    const DependencyGraph dependencies = build_dependencies(program_);
    for (const EarlyStart& start : starts_) {
      for (const TaskId earlier : dependencies.of(start.task)) {
        check(position_[earlier.index()] < position_[start.task.index()],
              "task #{} ({}) cannot start in front of task #{}: it depends on task #{} ({})",
              start.task.value, describe_task(program_, start.task), start.before.value,
              earlier.value, describe_task(program_, earlier));
      }
    }
  }

  const Program& program_;
  std::vector<EarlyStart> starts_;
  std::vector<uint32_t> first_writer_;  // by buffer
  Program result_;
  std::vector<uint32_t> position_;  // by task: where it is in result_
};

}  // namespace

Program start_early(const Program& program, std::span<const EarlyStart> starts) {
  return starts.empty() ? program : Rewriter(program, in_order(program, starts)).run();
}

}  // namespace braid
