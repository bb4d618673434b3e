#include "memory/live_ranges.h"

#include <algorithm>

#include "base/errors.h"

namespace braid {
TaskOrder::TaskOrder(const Program& program)
    : num_streams_(program.streams.size()),
      events_(program.num_events),
      tasks_(num_streams_),
      knots_(num_streams_),
      clocks_(num_streams_ * num_streams_) {
  for (size_t index = 0; index < program.tasks.size(); ++index) {
    const Task& task = program.tasks[index];
    const size_t stream = task.stream.index();
    const auto position = static_cast<uint32_t>(tasks_[stream].size());
    tasks_[stream].push_back(static_cast<uint32_t>(index));
    if (task.num_waits > 0) {
      wait_for_events(program, task, position);
    }
    if (task.record.valid()) {
      events_[task.record.index()] = {task.stream.value, position,
                                      static_cast<uint32_t>(knots_[stream].size())};
    }
  }
}

void TaskOrder::wait_for_events(const Program& program, const Task& task, uint32_t position) {
  const size_t stream = task.stream.index();
  std::vector<uint32_t>* columns = &clocks_[stream * num_streams_];
  std::vector<uint32_t> clock(num_streams_, 0);
  if (!knots_[stream].empty()) {
    for (size_t of = 0; of < num_streams_; ++of) {
      clock[of] = columns[of].back();
    }
  }
  bool grew = false;
  const auto raise = [&](size_t of, uint32_t count) {
    if (of != stream && count > clock[of]) {
      clock[of] = count;
      grew = true;
    }
  };
  for (const EventId event : program.waits_of(task)) {
    const RecordedEvent& recorded = events_[event.index()];
    check(recorded.stream != kNever,
          "task {} of stream {} waits for event {} before it is recorded", position,
          program.streams[stream].name, event.value);
    raise(recorded.stream, recorded.position + 1);
    if (recorded.knot > 0) {
      for (size_t of = 0; of < num_streams_; ++of) {
        raise(of, clocks_[recorded.stream * num_streams_ + of][recorded.knot - 1]);
      }
    }
  }
  if (grew) {
    knots_[stream].push_back(position);
    for (size_t of = 0; of < num_streams_; ++of) {
      columns[of].push_back(clock[of]);
    }
  }
}

uint32_t TaskOrder::num_finished(size_t of, size_t stream, uint32_t position) const {
  if (of == stream) {
    return position;
  }
  const std::vector<uint32_t>& knots = knots_[stream];
  const auto after = std::upper_bound(knots.begin(), knots.end(), position);
  if (after == knots.begin()) {
    return 0;
  }
  return clocks_[stream * num_streams_ + of][static_cast<size_t>(after - knots.begin()) - 1];
}

uint32_t TaskOrder::first_position_after(size_t of, uint32_t count, size_t stream) const {
  if (count == 0) {
    return 0;
  }
  if (of == stream) {
    return count;
  }
  const std::vector<uint32_t>& column = clocks_[stream * num_streams_ + of];
  const auto found = std::lower_bound(column.begin(), column.end(), count);
  return found == column.end() ? kNever
                               : knots_[stream][static_cast<size_t>(found - column.begin())];
}

bool TaskOrder::may_run(size_t stream, size_t knot, std::span<const uint32_t> num_done) const {
  for (size_t of = 0; of < num_streams_; ++of) {
    if (clocks_[stream * num_streams_ + of][knot] > num_done[of]) {
      return false;
    }
  }
  return true;
}

std::vector<std::vector<uint32_t>> TaskOrder::run_in_order(std::span<const size_t> priority) const {
  std::vector<std::vector<uint32_t>> times(num_streams_);
  std::vector<uint32_t> num_done(num_streams_, 0);
  std::vector<size_t> knot(num_streams_, 0);  // the next knot of each stream
  uint32_t time = 0;
  for (size_t choice = 0; choice < priority.size();) {
    const size_t stream = priority[choice];
    const uint32_t position = num_done[stream];
    const bool at_knot =
        knot[stream] < knots_[stream].size() && knots_[stream][knot[stream]] == position;
    if (position == tasks_[stream].size() ||
        (at_knot && !may_run(stream, knot[stream], num_done))) {
      ++choice;
      continue;
    }
    times[stream].push_back(time++);
    ++num_done[stream];
    knot[stream] += at_knot ? 1 : 0;
    choice = 0;
  }
  return times;
}

LiveRanges::LiveRanges(const Program& program, const TaskOrder& order)
    : num_tasks_(static_cast<uint32_t>(program.tasks.size())),
      heads_(program.buffers.size(), kNone),
      first_task_(program.buffers.size(), kNone),
      end_task_(program.buffers.size(), 0),
      queue_(program.buffers.size(), 0),
      start_(program.buffers.size(), 0) {
  collect_accesses(program);
  choose_queues(order);
  find_ends(order);
}

void LiveRanges::collect_accesses(const Program& program) {
  accesses_.reserve(program.buffers.size());
  std::vector<uint32_t> num_seen(program.streams.size(), 0);
  for (size_t index = 0; index < program.tasks.size(); ++index) {
    const Task& task = program.tasks[index];
    const uint32_t stream = task.stream.value;
    const uint32_t position = num_seen[stream]++;
    for (const BufferRange& range : program.operands_of(task)) {
      const size_t buffer = range.buffer.index();
      if (program.buffers[buffer].lifetime != Lifetime::kStep || range.begin == range.end) {
        continue;
      }
      if (first_task_[buffer] == kNone) {
        first_task_[buffer] = static_cast<uint32_t>(index);
      }
      uint32_t entry = heads_[buffer];
      while (entry != kNone && accesses_[entry].stream != stream) {
        entry = accesses_[entry].next;
      }
      if (entry == kNone) {
        accesses_.push_back({stream, position, position, heads_[buffer]});
        heads_[buffer] = static_cast<uint32_t>(accesses_.size() - 1);
      } else {
        accesses_[entry].last = position;
      }
    }
  }
}

bool LiveRanges::happens_after_another(const Accesses& access, uint32_t head,
                                       const TaskOrder& order) const {
  for (uint32_t entry = head; entry != kNone; entry = accesses_[entry].next) {
    const Accesses& other = accesses_[entry];
    if (other.stream != access.stream &&
        order.num_finished(other.stream, access.stream, access.first) > other.first) {
      return true;
    }
  }
  return false;
}

// A buffer whose first accesses on several streams are not ordered among themselves is taken from a
// joint queue, whose positions are program positions: it may reuse only memory that is free on all
// of these streams.
void LiveRanges::choose_queues(const TaskOrder& order) {
  constexpr uint32_t kJoint = kNone - 1;
  std::vector<uint32_t> queue_of_stream(order.num_streams(), kNone);
  std::vector<bool> is_joint_stream(order.num_streams(), false);
  bool has_joint = false;
  std::vector<uint32_t> starts_on;
  for (size_t buffer = 0; buffer < num_buffers(); ++buffer) {
    if (!is_used(buffer)) {
      continue;
    }
    starts_on.clear();
    for (uint32_t entry = heads_[buffer]; entry != kNone; entry = accesses_[entry].next) {
      if (!happens_after_another(accesses_[entry], heads_[buffer], order)) {
        starts_on.push_back(entry);
      }
    }
    if (starts_on.size() == 1) {
      const Accesses& first = accesses_[starts_on.front()];
      uint32_t& queue = queue_of_stream[first.stream];
      if (queue == kNone) {
        queue = static_cast<uint32_t>(queue_streams_.size());
        queue_streams_.push_back(first.stream);
      }
      queue_[buffer] = queue;
      start_[buffer] = first.first;
    } else {
      has_joint = true;
      queue_[buffer] = kJoint;
      start_[buffer] = first_task_[buffer];
      for (const uint32_t entry : starts_on) {
        is_joint_stream[accesses_[entry].stream] = true;
      }
    }
  }
  if (has_joint) {
    const auto joint = static_cast<uint32_t>(queue_streams_.size());
    queue_streams_.push_back(kNone);
    std::replace(queue_.begin(), queue_.end(), kJoint, joint);
  }
  for (uint32_t stream = 0; stream < order.num_streams(); ++stream) {
    if (is_joint_stream[stream]) {
      joint_streams_.push_back(stream);
    }
  }
  num_queues_ = queue_streams_.size();
}

uint32_t LiveRanges::end_on_stream(size_t buffer, size_t stream, const TaskOrder& order) const {
  uint32_t end = 0;
  for (uint32_t entry = heads_[buffer]; entry != kNone; entry = accesses_[entry].next) {
    const Accesses& access = accesses_[entry];
    end = std::max(end, order.first_position_after(access.stream, access.last + 1, stream));
  }
  return end;
}

void LiveRanges::find_ends(const TaskOrder& order) {
  const auto program_position = [&](size_t stream, uint32_t position) {
    const std::span<const uint32_t> tasks = order.tasks_of(stream);
    return position < tasks.size() ? tasks[position] : num_tasks_;
  };
  ends_.assign(num_buffers() * num_queues_, kNever);
  for (size_t buffer = 0; buffer < num_buffers(); ++buffer) {
    if (!is_used(buffer)) {
      continue;
    }
    for (size_t queue = 0; queue < num_queues_; ++queue) {
      uint32_t& end = ends_[buffer * num_queues_ + queue];
      uint32_t end_task = 0;
      if (queue_streams_[queue] != kNone) {
        end = end_on_stream(buffer, queue_streams_[queue], order);
        end_task = program_position(queue_streams_[queue], end);
      } else {
        for (const uint32_t stream : joint_streams_) {
          end_task =
              std::max(end_task, program_position(stream, end_on_stream(buffer, stream, order)));
        }
        end = end_task;
      }
      end_task_[buffer] = std::max(end_task_[buffer], end_task);
    }
  }
}

}  // namespace braid
