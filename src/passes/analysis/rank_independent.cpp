#include "passes/analysis/rank_independent.h"

#include <algorithm>
#include <utility>

#include "ops/op.h"
#include "sim/cost_model.h"

namespace braid {

Program at_first_ranks(Program program) {
  program.rank = 0;
  for (Group& group : program.groups) {
    const int first = *std::ranges::min_element(group.ranks);
    for (int& rank : group.ranks) {
      rank -= first;
    }
  }
  return program;
}

OpSpec at_first_rank(OpSpec spec) {
  const OpDefinition* const op = find_known_op(spec.op);
  if (op != nullptr && !op->added_by_one.empty()) {
    for (Attribute& attribute : spec.attributes) {
      if (attribute.name == op->added_by_one) {
        attribute.value = true;
      }
    }
  }
  return spec;
}

int64_t rank_independent_ns(const CostModel& model, const Program& program, TaskId task) {
  const OpSpec& spec = program.spec(program.tasks[task.index()]);
  return find_op(spec.op).op_class == OpClass::kCommunication
             ? program_task_cost(model, program, task).ns
             : model.task_ns(at_first_rank(spec));
}

}  // namespace braid
