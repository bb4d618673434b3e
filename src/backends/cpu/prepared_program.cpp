#include "backends/cpu/prepared_program.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ops/op.h"

namespace braid {
namespace {

CommCall prepare_call(const Program& program, TaskId id, std::span<std::byte* const> operands) {
  const OpSpec& spec = program.spec(program.tasks[id.index()]);
  const std::optional<GroupId> group = group_of(program, spec);
  check(group.has_value(), "task {} ({}) communicates in none of the {} groups", id.value,
        describe_task(program, id), program.groups.size());
  return make_comm_call(spec, program.groups[group->index()], operands, describe_task(program, id));
}

/// Which specs communicate: few specs, perhaps a million tasks.
class CommunicatingSpecs {
 public:
  explicit CommunicatingSpecs(const Program& program)
      : program_(program), known_(program.specs.size()) {}

  bool contains(SpecId spec) {
    std::optional<bool>& known = known_[spec.index()];
    if (!known) {
      known = find_op(program_.specs[spec].op).op_class == OpClass::kCommunication;
    }
    return *known;
  }

 private:
  const Program& program_;
  std::vector<std::optional<bool>> known_;
};

}  // namespace

int64_t PreparedProgram::size_bytes() const {
  size_t size = operands.size() * sizeof(std::byte*) + times.size() * sizeof(TaskTimes) +
                calls.size() * sizeof(CommCall) + program.num_events * sizeof(WaitWord);
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
  CommunicatingSpecs communicating(program);
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    PreparedTask ready{.id = TaskId(i)};
    if (communicating.contains(task.spec)) {
      ready.call = static_cast<uint32_t>(prepared.calls.size());
      prepared.calls.push_back(prepare_call(program, TaskId(i), prepared.operands_of(task)));
    }
    prepared.tasks[task.stream.index()].push_back(ready);
  }
  return prepared;
}

}  // namespace braid
