#include "backends/measured_timeline.h"

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/errors.h"

namespace braid {
namespace {

/// "op site", the name of a task in timelines.
std::string short_name(const Program& program, const Task& task) {
  const std::string& op = program.spec(task).op;
  const SiteId site = task.label.site;
  return site.value < program.sites.size() ? op + " " + program.sites[site.index()] : op;
}

TimelineTask timeline_task(const Program& program, const Task& task, const TaskTimes& times) {
  TimelineTask entry{.stream = task.stream.value,
                     .phase = task.label.phase,
                     .microbatch = task.label.microbatch,
                     .virtual_stage = task.label.virtual_stage,
                     .layer = task.label.layer,
                     .start_ns = times.start_ns,
                     .end_ns = times.end_ns};
  const OpSpec& spec = program.spec(task);
  if (const std::optional<GroupId> group = group_of(program, spec)) {
    check(!spec.operands.empty(), "{} communicates nothing", spec.op);
    const OperandSpec& data = spec.operands[0];
    entry.bytes = data.shape.num_elems() * static_cast<int64_t>(dtype_bytes(data.dtype));
    entry.group = program.groups[group->index()].kind;
    entry.communication = true;
  }
  return entry;
}

}  // namespace

RankTimeline measured_timeline(const Program& program, std::span<const TaskTimes> times) {
  check(times.size() == program.tasks.size(), "program {} has {} tasks, but times of {}",
        program.name, program.tasks.size(), times.size());
  RankTimeline timeline{
      .rank = program.rank, .step = 0, .streams = program.streams, .names = {}, .tasks = {}};
  std::unordered_map<std::string, uint32_t> index_of_name;
  std::vector<std::vector<TimelineTask>> of_stream(program.streams.size());
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    if (times[i].start_ns < 0) {
      continue;
    }
    const Task& task = program.tasks[i];
    const auto [name, is_new] = index_of_name.emplace(short_name(program, task),
                                                      static_cast<uint32_t>(timeline.names.size()));
    if (is_new) {
      timeline.names.push_back(name->first);
    }
    TimelineTask entry = timeline_task(program, task, times[i]);
    entry.name = name->second;
    of_stream[task.stream.index()].push_back(entry);
  }
  for (const auto& tasks : of_stream) {
    timeline.tasks.insert(timeline.tasks.end(), tasks.begin(), tasks.end());
  }
  return timeline;
}

}  // namespace braid
