#include "backends/device_activity.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "trace/task_timeline.h"

namespace braid {
namespace {

constexpr uint32_t kNoTask = TimelineKernel::kNoTask;

bool has_times(const DeviceActivity& activity) {
  return activity.start_ns > 0 && activity.start_ns <= activity.end_ns;
}

/// "3 tasks"
std::string count_of(int64_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

/// What the timeline does not show.
struct Remarks {
  int64_t num_lost = 0;
  int64_t num_untimed = 0;
  int64_t num_without_task = 0;
  int64_t without_task_ns = 0;
  int64_t num_silent_nodes = 0;
  int64_t num_nodes = 0;
  int64_t num_moved = 0;
  int64_t largest_move_ns = 0;

  std::string text() const {
    std::vector<std::string> parts;
    if (num_without_task > 0) {
      parts.push_back(fmt::format("work of no task: {} ({:.1f} us)",
                                  count_of(num_without_task, "kernel"),
                                  static_cast<double>(without_task_ns) * 1e-3));
    }
    if (num_silent_nodes > 0) {
      parts.push_back(
          fmt::format("no record of {} of {} graph nodes", num_silent_nodes, num_nodes));
    }
    if (num_lost > 0) {
      parts.push_back(fmt::format("{} lost by the profiler", count_of(num_lost, "record")));
    }
    if (num_untimed > 0) {
      parts.push_back(fmt::format("{} without times", count_of(num_untimed, "record")));
    }
    if (num_moved > 0) {
      parts.push_back(fmt::format("{} moved by up to {} ns to after what they wait for",
                                  count_of(num_moved, "start"), largest_move_ns));
    }
    return join(parts, "; ");
  }
};

/// Finds the task of each activity.
class Attribution {
 public:
  Attribution(const ActivityLog& log, const TaskOfNode& task_of_node)
      : task_of_node_(task_of_node) {
    for (const CallOfTask& entry : log.calls) {
      task_of_call_.insert_or_assign(entry.call, entry.task);
    }
  }

  uint32_t task_of(const DeviceActivity& activity) {
    if (activity.graph_node == 0) {
      const auto found = task_of_call_.find(activity.call);
      return found == task_of_call_.end() ? kNoTask : found->second;
    }
    const auto found = task_of_node_.find(activity.graph_node);
    if (found == task_of_node_.end()) {
      return kNoTask;
    }
    seen_.insert(activity.graph_node);
    return found->second;
  }

  int64_t num_silent_nodes() const {
    return static_cast<int64_t>(task_of_node_.size() - seen_.size());
  }

 private:
  const TaskOfNode& task_of_node_;
  std::unordered_map<uint32_t, uint32_t> task_of_call_;
  std::unordered_set<uint64_t> seen_;
};

/// First start and last end of each task; -1 if it has no kernel.
std::vector<TaskTimes> extents(size_t num_tasks, const std::vector<TimelineKernel>& kernels) {
  std::vector<TaskTimes> times(num_tasks);
  for (const TimelineKernel& kernel : kernels) {
    if (kernel.task == kNoTask) {
      continue;
    }
    TaskTimes& of_task = times[kernel.task];
    of_task.start_ns =
        of_task.start_ns < 0 ? kernel.start_ns : std::min(of_task.start_ns, kernel.start_ns);
    of_task.end_ns = std::max(of_task.end_ns, kernel.end_ns);
  }
  return times;
}

/// Sets the times of tasks without work, and moves starts that violate the order. In program order
/// a task comes after all tasks that it waits for, so one pass suffices.
void put_in_order(const Program& program, std::vector<TaskTimes>& times, Remarks& remarks) {
  std::vector<int64_t> stream_end_ns(program.streams.size());
  std::vector<int64_t> recorded_ns(program.num_events);
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    TaskTimes& of_task = times[i];
    int64_t ready_ns = stream_end_ns[task.stream.index()];
    for (const EventId event : program.waits_of(task)) {
      ready_ns = std::max(ready_ns, recorded_ns[event.index()]);
    }
    if (of_task.start_ns < 0) {
      of_task = {ready_ns, ready_ns};
    } else if (of_task.start_ns < ready_ns) {
      ++remarks.num_moved;
      remarks.largest_move_ns = std::max(remarks.largest_move_ns, ready_ns - of_task.start_ns);
      of_task = {ready_ns, std::max(ready_ns, of_task.end_ns)};
    }
    stream_end_ns[task.stream.index()] = of_task.end_ns;
    if (task.record.valid()) {
      recorded_ns[task.record.index()] = of_task.end_ns;
    }
  }
}

int64_t first_start_ns(const ActivityLog& log) {
  int64_t first_ns = INT64_MAX;
  for (const DeviceActivity& activity : log.activities) {
    if (has_times(activity)) {
      first_ns = std::min(first_ns, activity.start_ns);
    }
  }
  return first_ns;
}

/// The activities with known times, by start, with the position of their task in the program.
std::vector<TimelineKernel> kernels_of(const Program& program, const ActivityLog& log,
                                       Attribution& attribution, Remarks& remarks) {
  const int64_t origin_ns = first_start_ns(log);
  std::vector<TimelineKernel> kernels;
  kernels.reserve(log.activities.size());
  for (const DeviceActivity& activity : log.activities) {
    const uint32_t task = attribution.task_of(activity);
    check(task == kNoTask || task < program.tasks.size(),
          "program {}: an activity of task {} of {}", program.name, task, program.tasks.size());
    if (!has_times(activity)) {
      ++remarks.num_untimed;
      continue;
    }
    if (task == kNoTask) {
      ++remarks.num_without_task;
      remarks.without_task_ns += activity.end_ns - activity.start_ns;
    }
    kernels.push_back({.task = task,
                       .name = activity.name,
                       .start_ns = activity.start_ns - origin_ns,
                       .end_ns = activity.end_ns - origin_ns});
  }
  std::stable_sort(kernels.begin(), kernels.end(),
                   [](const TimelineKernel& a, const TimelineKernel& b) {
                     return std::pair(a.start_ns, a.end_ns) < std::pair(b.start_ns, b.end_ns);
                   });
  return kernels;
}

}  // namespace

void add_host_timed(std::span<const HostTimedTask> tasks, std::string_view name, ActivityLog& log) {
  uint32_t last_call = 0;
  for (const DeviceActivity& activity : log.activities) {
    last_call = std::max(last_call, activity.call);
  }
  for (const CallOfTask& entry : log.calls) {
    last_call = std::max(last_call, entry.call);
  }
  const auto name_index = static_cast<uint32_t>(log.names.size());
  log.names.emplace_back(name);
  for (const HostTimedTask& task : tasks) {
    ++last_call;
    log.calls.push_back({.call = last_call, .task = task.task});
    log.activities.push_back({.name = name_index,
                              .start_ns = task.start_ns,
                              .end_ns = task.end_ns,
                              .graph_node = 0,
                              .call = last_call});
  }
}

TaskOfNode tasks_of_nodes(std::span<const NodeOfTask> captured, std::span<const NodeClone> clones) {
  TaskOfNode tasks;
  for (const NodeOfTask& entry : captured) {
    tasks.insert_or_assign(entry.node, entry.task);
  }
  std::unordered_set<uint64_t> replaced;
  for (const NodeClone& clone : clones) {
    const auto original = tasks.find(clone.original);
    if (original != tasks.end() && clone.node != clone.original) {
      tasks.insert_or_assign(clone.node, original->second);
      replaced.insert(clone.original);
    }
  }
  for (const uint64_t node : replaced) {
    tasks.erase(node);
  }
  return tasks;
}

void for_each_owner(std::span<const ActivityOwner> owners, int device, uint64_t graph_node,
                    const std::function<void(size_t owner)>& use) {
  const auto knows = [&](const ActivityOwner& owner) {
    return graph_node != 0 && owner.nodes != nullptr && owner.nodes->contains(graph_node);
  };
  const bool is_from_elsewhere = std::any_of(
      owners.begin(), owners.end(),
      [&](const ActivityOwner& owner) { return owner.device != device && knows(owner); });
  for (size_t i = 0; i < owners.size(); ++i) {
    const bool is_on_device = owners[i].device == device;
    if (is_from_elsewhere ? knows(owners[i]) : is_on_device) {
      use(i);
    }
  }
}

RankTimeline timeline_of_activities(const Program& program, const ActivityLog& log,
                                    const TaskOfNode& task_of_node) {
  Remarks remarks;
  remarks.num_lost = log.num_lost;
  remarks.num_nodes = static_cast<int64_t>(task_of_node.size());
  Attribution attribution(log, task_of_node);
  std::vector<TimelineKernel> kernels = kernels_of(program, log, attribution, remarks);
  remarks.num_silent_nodes = attribution.num_silent_nodes();
  std::vector<TaskTimes> times = extents(program.tasks.size(), kernels);
  put_in_order(program, times, remarks);
  RankTimeline timeline = task_timeline(program, times, std::move(kernels));
  timeline.kernel_names = log.names;
  timeline.remark = remarks.text();
  timeline.clock_origin_ns = timeline.kernels.empty() ? 0 : first_start_ns(log);
  return timeline;
}

}  // namespace braid
