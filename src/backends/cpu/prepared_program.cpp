#include "backends/cpu/prepared_program.h"

#include <utility>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/collectives.h"

namespace braid {
namespace {

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
  prepared.operands = operand_addresses(program, plan, step_plan, arenas);
  prepared.events = std::make_unique<WaitWord[]>(program.num_events);
  prepared.tasks.resize(program.streams.size());
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
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

}  // namespace braid
