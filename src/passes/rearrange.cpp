#include "passes/rearrange.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"
#include "ir/dependencies.h"
#include "ops/offload.h"

namespace braid {
namespace {

constexpr uint32_t kNone = BufferUses::kNone;

/// By task: its position in `order`.
std::vector<uint32_t> places_of(const Program& program, std::span<const TaskId> order) {
  check(order.size() == program.tasks.size(), "an order of {} tasks for a program of {}",
        order.size(), program.tasks.size());
  std::vector<uint32_t> places(order.size(), kNone);
  for (size_t i = 0; i < order.size(); ++i) {
    uint32_t& place = places.at(order[i].index());
    check(place == kNone, "task #{} has two places", order[i].value);
    place = static_cast<uint32_t>(i);
  }
  return places;
}

void check_order(const Program& program, std::span<const uint32_t> places,
                 const DependencyGraph& dependencies) {
  for (size_t i = 0; i < places.size(); ++i) {
    for (const TaskId earlier : dependencies.of(TaskId(i))) {
      if (places[earlier.index()] >= places[i]) {  // no check(): formatting its message for each
                                                   // task is slow
        throw_internal_error("task #{} ({}) cannot come before task #{} ({}), on which it depends",
                             i, describe_task(program, TaskId(i)), earlier.value,
                             describe_task(program, earlier));
      }
    }
  }
}

BufferUses uses_in(const Program& program, std::span<const TaskId> order) {
  BufferUses uses{std::vector<uint32_t>(program.buffers.size(), kNone),
                  std::vector<uint32_t>(program.buffers.size(), kNone)};
  for (size_t i = 0; i < order.size(); ++i) {
    for (const BufferRange& range : program.operands_of(program.tasks[order[i].index()])) {
      uint32_t& first = uses.first[range.buffer.index()];
      first = std::min(first, static_cast<uint32_t>(i));
      uses.last[range.buffer.index()] = static_cast<uint32_t>(i);
    }
  }
  return uses;
}

void check_hand_overs(const Program& program, const BufferUses& uses,
                      std::span<const HandOver> hand_overs) {
  for (const HandOver& hand_over : hand_overs) {
    const size_t buffer = hand_over.buffer.index();
    const bool outside = uses.first[buffer] == kNone || hand_over.position <= uses.first[buffer] ||
                         hand_over.position > uses.last[buffer];
    check(outside && program.buffers[buffer].lifetime == Lifetime::kStep,
          "the memory of buffer {} cannot change hands in front of task #{}: it is in use",
          program.buffers[buffer].name, hand_over.position);
  }
}

/// Writes tasks and operands anew, and takes over the rest of the program.
class OrderWriter {
 public:
  explicit OrderWriter(Program program)
      : program_(std::move(program)),
        from_(std::move(program_.tasks)),
        operands_from_(std::move(program_.operands)) {
    program_.tasks.clear();
    program_.operands.clear();
    program_.tasks.reserve(from_.size());
    program_.operands.reserve(operands_from_.size());
    program_.waits.clear();
    program_.num_events = 0;
  }

  void append(TaskId id) {
    Task task = from_[id.index()];
    const BufferRange* const ranges = operands_from_.data() + task.operands_begin;
    task.record = EventId();
    task.waits_begin = 0;
    task.num_waits = 0;
    append(task, {ranges, program_.spec(task).operands.size()});
  }

  void append(const HandOver& hand_over) {
    const Buffer& whole = program_.buffers[hand_over.buffer.index()];
    Task task;
    task.spec = program_.specs.intern(undefine_spec(whole));
    task.stream = hand_over.stream;
    task.label = hand_over.label;
    append(task, std::array{BufferRange{hand_over.buffer, 0, whole.num_elems()}});
  }

  Program take() { return std::move(program_); }

 private:
  void append(Task task, std::span<const BufferRange> ranges) {
    task.operands_begin = static_cast<uint32_t>(program_.operands.size());
    program_.operands.insert(program_.operands.end(), ranges.begin(), ranges.end());
    program_.tasks.push_back(task);
  }

  Program program_;
  std::vector<Task> from_;
  std::vector<BufferRange> operands_from_;
};

Program with_hand_overs(Program program, std::span<const TaskId> order,
                        std::span<const HandOver> hand_overs) {
  if (!hand_overs.empty()) {
    check_hand_overs(program, uses_in(program, order), hand_overs);
  }
  std::vector<HandOver> sorted(hand_overs.begin(), hand_overs.end());
  std::ranges::stable_sort(sorted, {}, &HandOver::position);
  OrderWriter writer(std::move(program));
  auto next = sorted.begin();
  for (uint32_t position = 0; position <= order.size(); ++position) {
    for (; next != sorted.end() && next->position == position; ++next) {
      writer.append(*next);
    }
    if (position < order.size()) {
      writer.append(order[position]);
    }
  }
  check(next == sorted.end(), "a hand-over stands behind the end of the program");
  return writer.take();
}

}  // namespace

BufferUses find_uses(const Program& program) {
  std::vector<TaskId> order;
  order.reserve(program.tasks.size());
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    order.emplace_back(i);
  }
  return uses_in(program, order);
}

Label hand_over_label(const Program& program, uint32_t position, const Task& for_task) {
  Label label = for_task.label;
  label.phase = Phase::kForward;
  for (size_t i = position; i < program.tasks.size(); ++i) {
    if (program.tasks[i].label.phase != Phase::kComm) {
      label = program.tasks[i].label;
      break;
    }
  }
  label.site = for_task.label.site;
  return label;
}

Program rearrange(Program program, std::span<const TaskId> order,
                  std::span<const HandOver> hand_overs) {
  const std::vector<uint32_t> places = places_of(program, order);
  if (!std::ranges::is_sorted(places)) {
    check_order(program, places, build_dependencies(program));
  }
  return with_hand_overs(std::move(program), order, hand_overs);
}

Program rearrange(Program program, std::span<const TaskId> order,
                  std::span<const HandOver> hand_overs, const DependencyGraph& dependencies) {
  check_order(program, places_of(program, order), dependencies);
  return with_hand_overs(std::move(program), order, hand_overs);
}

Program with_tasks_in_order(Program program, std::span<const TaskId> order) {
  places_of(program, order);  // checks it
  return with_hand_overs(std::move(program), order, {});
}

}  // namespace braid
