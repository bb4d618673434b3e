#include "ops/offload.h"

#include "ops/attributes.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_transfer(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  const OperandSpec& x =
      operands.next("x", Access::kRead, spec.operands.empty() ? 0 : spec.operands[0].shape.rank());
  operands.expect("y", Access::kWrite, x.dtype, x.shape);
  operands.done();
}

OpCost transfer_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.host_bytes = cost.bytes_read;
  return cost;
}

void check_undefine(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  operands.next("y", Access::kWrite, spec.operands.empty() ? 0 : spec.operands[0].shape.rank());
  operands.done();
}

void check_await(const OpSpec& spec) {
  static_cast<void>(attributes_of<NoAttributes>(spec));
  OperandChecker operands(spec);
  operands.next("x", Access::kRead, spec.operands.empty() ? 0 : spec.operands[0].shape.rank());
  operands.done();
}

OpCost no_cost(const OpSpec& /*spec*/) {
  return {};
}

}  // namespace

const OpDefinition kOffloadOp{
    .name = "offload",
    .summary = "Copies bytes from the device to the host.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kHostCopy,
    .kind = OpKind::kCopy,
    .check = check_transfer,
    .cost = transfer_cost,
    .recompute = Recompute::kNone,
    .host_copy = HostCopy::kToHost,
    .split = kNeverSplit,
    .values = ValueRule::kMoved,
};

const OpDefinition kReloadOp{
    .name = "reload",
    .summary = "Copies bytes from the host back to the device.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kHostCopy,
    .kind = OpKind::kCopy,
    .check = check_transfer,
    .cost = transfer_cost,
    .recompute = Recompute::kNone,
    .host_copy = HostCopy::kToDevice,
    .split = kNeverSplit,
    .values = ValueRule::kMoved,
};

const OpDefinition kUndefineOp{
    .name = "undefine",
    .summary = "Does nothing; what it writes holds nothing afterwards.",
    .op_class = OpClass::kOrder,
    .family = OpFamily::kNothing,
    .kind = OpKind::kElementwise,
    .check = check_undefine,
    .cost = no_cost,
    .recompute = Recompute::kNone,
};

const OpDefinition kAwaitOp{
    .name = "await",
    .summary = "Does nothing; what follows on its stream runs after what wrote its operand.",
    .op_class = OpClass::kOrder,
    .family = OpFamily::kNothing,
    .kind = OpKind::kElementwise,
    .check = check_await,
    .cost = no_cost,
    .recompute = Recompute::kNone,
};

OpSpec undefine_spec(const Buffer& buffer) {
  return {std::string(kUndefineOp.name),
          {},
          {{.dtype = buffer.dtype, .access = Access::kWrite, .shape = buffer.shape}}};
}

OpSpec await_spec(const Buffer& buffer, int64_t num_elems) {
  return {std::string(kAwaitOp.name),
          {},
          {{.dtype = buffer.dtype, .access = Access::kRead, .shape = {num_elems}}}};
}

bool undefines(const OpSpec& spec) {
  return spec.op == kUndefineOp.name;
}

bool does_nothing(const OpSpec& spec) {
  return undefines(spec) || spec.op == kAwaitOp.name;
}

}  // namespace braid
