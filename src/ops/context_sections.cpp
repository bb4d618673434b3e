#include "ops/context_sections.h"

#include <array>

#include "ops/attributes.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_context(const OperandChecker& operands, const ContextSections& context) {
  operands.require(context.is_valid(),
                   "index must be that of one of the ranks, inner must divide them, and sections "
                   "must be 1, or 2 where inner is odd and not all ranks");
}

void check_neighbour_sections(const OpSpec& spec) {
  const auto a = attributes_of<NeighbourSectionsAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  check_context(operands, a.context);
  operands.require(a.rows > 0 && x.shape[0] % (a.context.count() * a.rows) == 0,
                   "x must have `rows` rows for each section of all ranks");
  operands.expect("y", Access::kWrite, x.dtype, {x.shape[0] / a.context.ranks, x.shape[1]});
  operands.done();
}

/// Elements of all states of a section.
int64_t state_elems(int64_t width, int64_t heads) {
  return width - heads;
}

void check_carry_states(const OpSpec& spec) {
  const auto a = attributes_of<CarryStatesAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  check_context(operands, a.context);
  operands.require(x.dtype == accumulator_dtype(x.dtype), "states must be f32 or f64");
  operands.require(a.heads > 0 && x.shape[1] % a.heads == 0 && x.shape[1] > a.heads,
                   "a row must hold a state and a factor for each head");
  operands.require(x.shape[0] % a.context.count() == 0,
                   "x must have a row for each section of all ranks");
  operands.expect("y", Access::kWrite, x.dtype,
                  {x.shape[0] / a.context.ranks, state_elems(x.shape[1], a.heads)});
  operands.done();
}

/// Reads as much as it writes.
OpCost neighbour_sections_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.bytes_read = cost.bytes_written;
  return cost;
}

/// The same on all ranks, as if each read all sections.
OpCost carry_states_cost(const OpSpec& spec) {
  OpCost cost = operand_bytes(spec);
  cost.flops = 2 * elems(spec, 0);
  return cost;
}

}  // namespace

const OpDefinition kNeighbourSectionsOp{
    .name = "neighbour_sections",
    .summary = "Picks the rows next to a context rank's sections out of those of all ranks.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_neighbour_sections,
    .cost = neighbour_sections_cost,
    .split = kNeverSplit,
    .part_begin = "index",
};

const OpDefinition kCarryStatesOp{
    .name = "carry_states",
    .summary = "States next to a context rank's sections, from what all sections do to them.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kStateSpace,
    .check = check_carry_states,
    .cost = carry_states_cost,
    .split = kNeverSplit,
    .part_begin = "index",
};

ValueId neighbour_sections(GraphBuilder& builder, ValueId x,
                           const NeighbourSectionsAttributes& attributes, std::string_view site) {
  const Value input = builder.value(x);
  const ValueId y = builder.add_activation(
      site, input.dtype, {input.shape[0] / attributes.context.ranks, input.shape[1]});
  builder.add_node("neighbour_sections", to_attributes(attributes),
                   std::array{Operand{x}, Operand{y, Access::kWrite}}, site);
  return y;
}

ValueId carry_states(GraphBuilder& builder, ValueId x, const CarryStatesAttributes& attributes,
                     std::string_view site) {
  const Value input = builder.value(x);
  const ValueId y = builder.add_activation(
      site, input.dtype,
      {input.shape[0] / attributes.context.ranks, state_elems(input.shape[1], attributes.heads)});
  builder.add_node("carry_states", to_attributes(attributes),
                   std::array{Operand{x}, Operand{y, Access::kWrite}}, site);
  return y;
}

}  // namespace braid
