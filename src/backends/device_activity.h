#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/program.h"
#include "trace/timeline.h"

/// From what a device's profiler reports to the timeline of a program's tasks. Knows no profiler
/// and no device: backends/cuda/cupti_session.h makes the records.
namespace braid {

/// One kernel, copy or fill that a device ran.
struct DeviceActivity {
  uint32_t name = 0;     ///< index into ActivityLog::names
  int64_t start_ns = 0;  ///< on the profiler's clock; 0, or an end before the start: not known
  int64_t end_ns = 0;
  uint64_t graph_node = 0;  ///< id of the node that it came from, 0: from no graph
  uint32_t call = 0;        ///< id of the call of the host that enqueued it
};

/// A call of the host that enqueued work of a task.
struct CallOfTask {
  uint32_t call = 0;
  uint32_t task = 0;  ///< place in the program
};

/// What the device did in one step.
struct ActivityLog {
  std::vector<std::string> names;
  std::vector<DeviceActivity> activities;  ///< in any order
  std::vector<CallOfTask> calls;           ///< of work that is not in a graph
  int64_t num_lost = 0;                    ///< records for which the profiler had no room
};

/// A task whose times the host took, on the profiler's clock: of what leaves no record.
struct HostTimedTask {
  uint32_t task = 0;  ///< place in the program
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

/// Adds them as activities of that name, of calls that nothing else in `log` has.
void add_host_timed(std::span<const HostTimedTask> tasks, std::string_view name, ActivityLog& log);

/// A node of a captured graph, by the profiler's id, and the task that it was captured for.
struct NodeOfTask {
  uint64_t node = 0;
  uint32_t task = 0;
};

/// A node that was made as the copy of another one.
struct NodeClone {
  uint64_t original = 0;
  uint64_t node = 0;
};

using TaskOfNode = std::unordered_map<uint64_t, uint32_t>;

/// The tasks of the nodes that run: those of captured nodes that nobody cloned, and of clones, and
/// clones of clones, of captured nodes. `clones` are in the order in which they were made.
TaskOfNode tasks_of_nodes(std::span<const NodeOfTask> captured, std::span<const NodeClone> clones);

/// Who wants to know what a device does: a rank.
struct ActivityOwner {
  int device = 0;
  const TaskOfNode* nodes = nullptr;  ///< of the graph that it has launched; null: it has none
};

/// Calls `use` with the place in `owners` of each to whom an activity of `device` belongs: those
/// whose graph has the node; those of the device, if no graph has it or one on the device. So a
/// copy between devices is its rank's, whichever device the profiler says that it ran on.
void for_each_owner(std::span<const ActivityOwner> owners, int device, uint64_t graph_node,
                    const std::function<void(size_t owner)>& use);

/// The step that `log` is of. Time 0 is the start of its first activity, and `clock_origin_ns` that
/// moment on the profiler's clock, which is one for all devices of a host. A task runs from the
/// start of its first activity to the end of its last one; one without any takes no time, when all
/// that it had to wait for is over. Activities of no task become kernels of no task.
///
/// The clocks of a device are good to some nanoseconds, so a task may seem to start before what it
/// waits for has ended; its start is moved to then, since the order is certain.
/// RankTimeline::remark says if this moved any task, which activities have no task or no times,
/// what the profiler lost, and which of `task_of_node` left no record. `kernels` have the times as
/// measured.
RankTimeline timeline_of_activities(const Program& program, const ActivityLog& log,
                                    const TaskOfNode& task_of_node);

}  // namespace braid
