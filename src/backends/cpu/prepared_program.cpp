#include "backends/cpu/prepared_program.h"

#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/collectives.h"

namespace braid {
namespace {

/// The address of each buffer; checks that it lies inside its arena.
std::vector<std::byte*> buffer_addresses(const Program& program, const MemoryPlan& plan,
                                         const StepPlan& step_plan, const Arenas& arenas) {
  check(step_plan.offset_bytes.size() == program.buffers.size(),
        "program {} has {} buffers, its memory plan {}", program.name, program.buffers.size(),
        step_plan.offset_bytes.size());
  std::vector<std::byte*> addresses;
  addresses.reserve(program.buffers.size());
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    const bool persistent = buffer.lifetime == Lifetime::kPersistent;
    const int64_t limit_bytes = persistent ? plan.persistent_bytes : plan.step_bytes;
    const int64_t offset_bytes = step_plan.offset_bytes[i];
    check(offset_bytes >= 0 && offset_bytes + buffer.size_bytes() <= limit_bytes,
          "program {}: buffer {} of {} bytes at offset {} is outside its arena of {} bytes",
          program.name, buffer.name, buffer.size_bytes(), offset_bytes, limit_bytes);
    addresses.push_back((persistent ? arenas.persistent : arenas.step) + offset_bytes);
  }
  return addresses;
}

PreparedCollective prepare_collective(const Program& program, TaskId id,
                                      std::span<std::byte* const> operands) {
  const OpSpec& spec = program.spec(program.tasks[id.index()]);
  const int64_t group = attributes_of<AllReduceAttributes>(spec).group;
  check(group >= 0 && group < static_cast<int64_t>(program.groups.size()),
        "task {} ({}): group {} of {}", id.value, describe_task(program, id), group,
        program.groups.size());
  check(spec.operands.size() == 1, "task {} ({}): {} operands instead of 1", id.value,
        describe_task(program, id), spec.operands.size());
  return {.group = &program.groups[static_cast<size_t>(group)],
          .data = operands[0],
          .num_elems = spec.operands[0].shape.num_elems(),
          .dtype = spec.operands[0].dtype,
          .what = describe_task(program, id)};
}

/// "op site", the name of a task in timelines.
std::string short_name(const Program& program, const Task& task) {
  const std::string& op = program.spec(task).op;
  const SiteId site = task.label.site;
  return site.value < program.sites.size() ? op + " " + program.sites[site.index()] : op;
}

void check_ids(const Program& program, const Task& task) {
  check(task.stream.index() < program.streams.size(), "program {}: stream {} of {}", program.name,
        task.stream.value, program.streams.size());
  check(!task.record.valid() || task.record.index() < program.num_events,
        "program {}: event {} of {}", program.name, task.record.value, program.num_events);
  for (const EventId event : program.waits_of(task)) {
    check(event.index() < program.num_events, "program {}: event {} of {}", program.name,
          event.value, program.num_events);
  }
}

}  // namespace

int64_t PreparedProgram::size_bytes() const {
  size_t size = operands.size() * sizeof(std::byte*) + times.size() * sizeof(TaskTimes) +
                collectives.size() * sizeof(PreparedCollective) +
                program.num_events * sizeof(WaitWord);
  for (const std::vector<PreparedTask>& stream : tasks) {
    size += stream.size() * sizeof(PreparedTask);
  }
  return static_cast<int64_t>(size);
}

PreparedProgram prepare_program(Program source, const MemoryPlan& plan, const StepPlan& step_plan,
                                const Arenas& arenas) {
  PreparedProgram prepared;
  prepared.program = std::move(source);
  const Program& program = prepared.program;
  const auto addresses = buffer_addresses(program, plan, step_plan, arenas);
  prepared.operands.reserve(program.operands.size());
  for (const BufferRange& range : program.operands) {
    const auto elem_bytes =
        static_cast<int64_t>(dtype_bytes(program.buffers[range.buffer.index()].dtype));
    prepared.operands.push_back(addresses[range.buffer.index()] + range.begin * elem_bytes);
  }
  prepared.events = std::make_unique<WaitWord[]>(program.num_events);
  prepared.tasks.resize(program.streams.size());
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    check_ids(program, task);
    PreparedTask ready{.id = TaskId(i)};
    if (program.spec(task).op == "all_reduce") {
      ready.collective = static_cast<uint32_t>(prepared.collectives.size());
      prepared.collectives.push_back(
          prepare_collective(program, TaskId(i), prepared.operands_of(task)));
    }
    prepared.tasks[task.stream.index()].push_back(ready);
  }
  return prepared;
}

RankTimeline timeline_of(const PreparedProgram& prepared) {
  const Program& program = prepared.program;
  RankTimeline timeline{
      .rank = program.rank, .step = 0, .streams = program.streams, .names = {}, .tasks = {}};
  std::unordered_map<std::string, uint32_t> index_of_name;
  for (size_t stream = 0; stream < prepared.tasks.size(); ++stream) {
    for (const PreparedTask& ready : prepared.tasks[stream]) {
      const TaskTimes& times = prepared.times[ready.id.index()];
      if (times.start_ns < 0) {
        continue;
      }
      const Task& task = program.tasks[ready.id.index()];
      const auto [name, is_new] = index_of_name.emplace(
          short_name(program, task), static_cast<uint32_t>(timeline.names.size()));
      if (is_new) {
        timeline.names.push_back(name->first);
      }
      TimelineTask& entry = timeline.tasks.emplace_back();
      entry = {.stream = static_cast<uint32_t>(stream),
               .phase = task.label.phase,
               .microbatch = task.label.microbatch,
               .virtual_stage = task.label.virtual_stage,
               .layer = task.label.layer,
               .name = name->second,
               .start_ns = times.start_ns,
               .end_ns = times.end_ns};
      if (ready.is_collective()) {
        const PreparedCollective& call = prepared.collectives[ready.collective];
        entry.bytes = call.num_elems * static_cast<int64_t>(dtype_bytes(call.dtype));
        entry.group = call.group->kind;
        entry.communication = true;
      }
    }
  }
  return timeline;
}

}  // namespace braid
