#include "ops/collectives.h"

#include "ops/attributes.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_all_reduce(const OpSpec& spec) {
  const auto attributes = attributes_of<AllReduceAttributes>(spec);
  OperandChecker operands(spec);
  operands.next_floating("x", Access::kReadWrite, 1);
  operands.require(attributes.group >= 0, "group must be an index into the program's groups");
  operands.done();
}

OpCost all_reduce_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.comm_bytes = cost.bytes_read;
  return cost;
}

}  // namespace

const OpDefinition kAllReduceOp{
    .name = "all_reduce",
    .summary = "Sum over the ranks of a group, in place.",
    .op_class = OpClass::kCommunication,
    .check = check_all_reduce,
    .cost = all_reduce_cost,
};

}  // namespace braid
