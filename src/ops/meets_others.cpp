#include "ops/meets_others.h"

#include <algorithm>
#include <optional>

#include "base/errors.h"
#include "ops/offload.h"
#include "ops/op.h"

namespace braid {

bool meets_others(const Program& program, const Task& task) {
  const OpSpec& spec = program.spec(task);
  if (find_op(spec.op).op_class != OpClass::kCommunication || does_nothing(spec)) {
    return false;
  }
  const auto group = group_of(program, spec);
  check(group.has_value(), "op {} has no group", spec.op);
  return program.groups[group->index()].ranks.size() > 1;
}

std::vector<bool> tasks_that_meet_others(const Program& program) {
  std::vector<std::optional<bool>> known(program.specs.size());  // few specs, perhaps a million
                                                                 // tasks
  std::vector<bool> meets(program.tasks.size());
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    std::optional<bool>& of_spec = known[program.tasks[i].spec.index()];
    if (!of_spec) {
      of_spec = meets_others(program, program.tasks[i]);
    }
    meets[i] = *of_spec;
  }
  return meets;
}

bool exchanges_messages(const Program& program) {
  return std::ranges::any_of(program.tasks, [&](const Task& task) {
    return is_message(program.spec(task)) && meets_others(program, task);
  });
}

}  // namespace braid
