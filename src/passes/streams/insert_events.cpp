#include "passes/streams/insert_events.h"

#include <fmt/core.h>

#include <algorithm>

#include "ir/dependencies.h"
#include "passes/pipeline_options.h"

namespace braid {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

/// For each task, the tasks that have surely finished when it starts. A task that does not wait has
/// the clock of the task before it on its stream, so clocks are stored per wait and shared by the
/// tasks after it.
class Clocks {
 public:
  explicit Clocks(const Program& program)
      : program_(program),
        num_streams_(program.streams.size()),
        current_(num_streams_, kNone),
        length_(num_streams_),
        position_(program.tasks.size()),
        clock_of_task_(program.tasks.size()) {}

  void start(uint32_t task) { position_[task] = ++length_[stream_of(task)]; }
  void finish(uint32_t task) { clock_of_task_[task] = current_[stream_of(task)]; }

  /// True if `task`, which has started but not finished, is already ordered after `earlier`.
  bool knows(uint32_t task, uint32_t earlier) const {
    const uint32_t clock = current_[stream_of(task)];
    return clock != kNone && clocks_[clock + stream_of(earlier)] >= position_[earlier];
  }

  /// Adds `earlier`, and all that it knows, to what `task` knows. `is_first_wait`: earlier tasks
  /// share the stream's clock, so it must be copied before it is changed.
  void learn(uint32_t task, uint32_t earlier, bool is_first_wait) {
    uint32_t& clock = current_[stream_of(task)];
    if (is_first_wait) {
      clock = copy(clock);
    }
    if (const uint32_t other = clock_of_task_[earlier]; other != kNone) {
      for (size_t i = 0; i < num_streams_; ++i) {
        clocks_[clock + i] = std::max(clocks_[clock + i], clocks_[other + i]);
      }
    }
    uint32_t& known = clocks_[clock + stream_of(earlier)];
    known = std::max(known, position_[earlier]);
  }

 private:
  size_t stream_of(uint32_t task) const { return program_.tasks[task].stream.index(); }

  uint32_t copy(uint32_t clock) {
    const size_t begin = clocks_.size();
    clocks_.resize(begin + num_streams_);
    if (clock != kNone) {
      std::copy_n(clocks_.begin() + clock, num_streams_,
                  clocks_.begin() + static_cast<ptrdiff_t>(begin));
    }
    return static_cast<uint32_t>(begin);
  }

  const Program& program_;
  size_t num_streams_;
  std::vector<uint32_t> current_;        // by stream: begin of its clock in clocks_
  std::vector<uint32_t> length_;         // by stream: tasks started
  std::vector<uint32_t> position_;       // by task: its number on its stream, from 1
  std::vector<uint32_t> clock_of_task_;  // by task: begin of its clock in clocks_
  std::vector<uint32_t> clocks_;         // rows of [num_streams]
};

/// Waits of all tasks as pairs of positions, in program order.
struct Waits {
  std::vector<uint32_t> row_begin = {0};
  std::vector<uint32_t> for_task;
  int64_t num_dependencies = 0;  ///< dependencies between streams, with or without a wait
};

Waits choose_waits(const Program& program) {
  const DependencyGraph dependencies = build_dependencies(program);
  Clocks clocks(program);
  Waits waits;
  waits.row_begin.reserve(program.tasks.size() + 1);
  for (uint32_t task = 0; task < program.tasks.size(); ++task) {
    clocks.start(task);
    const auto predecessors = dependencies.of(TaskId(task));
    for (size_t i = predecessors.size(); i-- > 0;) {
      const uint32_t earlier = predecessors[i].value;
      if (program.tasks[earlier].stream == program.tasks[task].stream) {
        continue;
      }
      ++waits.num_dependencies;
      if (!clocks.knows(task, earlier)) {
        clocks.learn(task, earlier, waits.for_task.size() == waits.row_begin.back());
        waits.for_task.push_back(earlier);
      }
    }
    clocks.finish(task);
    waits.row_begin.push_back(static_cast<uint32_t>(waits.for_task.size()));
  }
  return waits;
}

/// Returns true if the events differ from those the program had.
bool write_events(Program& program, const Waits& waits) {
  std::vector<EventId> event_of(program.tasks.size());
  for (const uint32_t task : waits.for_task) {
    event_of[task] = EventId(size_t{0});
  }
  uint32_t num_events = 0;
  bool changed = false;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    if (event_of[i].valid()) {
      event_of[i] = EventId(size_t{num_events++});
    }
    changed |= program.tasks[i].record != event_of[i];
    program.tasks[i].record = event_of[i];
  }
  changed |= num_events != program.num_events;
  program.num_events = num_events;

  std::vector<EventId> events;
  events.reserve(waits.for_task.size());
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    Task& task = program.tasks[i];
    const uint32_t begin = waits.row_begin[i];
    const uint32_t end = waits.row_begin[i + 1];
    // Earliest first, for readers.
    for (uint32_t at = end; at-- > begin;) {
      events.push_back(event_of[waits.for_task[at]]);
    }
    changed |=
        !std::ranges::equal(program.waits_of(task), std::span(events).subspan(begin, end - begin));
    task.waits_begin = begin;
    task.num_waits = end - begin;
  }
  program.waits = std::move(events);
  return changed;
}

}  // namespace

PassResult insert_events(Program program) {
  const Waits waits = choose_waits(program);
  const bool changed = write_events(program, waits);
  const auto num_waits = static_cast<int64_t>(waits.for_task.size());
  return {std::move(program),
          {changed, num_waits,
           fmt::format("inserted {} waits for {} dependencies between streams", num_waits,
                       waits.num_dependencies)}};
}

Pass insert_events_pass() {
  return {
      .name = "insert_events",
      .summary =
          "Orders dependent tasks on different streams with as few events and waits as possible.",
      .run = run_of(insert_events),
      .why_required = "tasks of different streams would run unordered",
      .places_events = true};
}

}  // namespace braid
