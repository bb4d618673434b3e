#include "ops/transpose.h"

#include "ops/attributes.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_transpose(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next("x", Access::kRead, 2);
  operands.require(dtype_bytes(x.dtype) == 1, "x must have elements of one byte");
  operands.expect("y", Access::kWrite, x.dtype, {x.shape[1], x.shape[0]});
  operands.done();
}

}  // namespace

const OpDefinition kTransposeOp{
    .name = "transpose",
    .summary = "y = x^T, of bytes.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_transpose,
    .cost = elementwise_cost<0>,
    .kernel_rate = {.part = 0.77},
    .recompute = Recompute::kNone,
    .split = kNeverSplit,
};

}  // namespace braid
