#include "ops/adapter.h"

#include <algorithm>
#include <array>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// The z are between base and y, the first operand that is written.
size_t num_adapters(const OpSpec& spec) {
  size_t end = spec.operands.empty() ? 0 : spec.operands.size() - 1;
  for (size_t i = end + 1; i-- > 0;) {
    end = writes(spec.operands[i].access) ? i : end;
  }
  return std::clamp<size_t>(end, 2, kMostAdapters + 1) - 1;
}

void check_add_adapters(const OpSpec& spec) {
  const auto a = attributes_of<AddAdaptersAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& base = operands.next_floating("base", Access::kRead, 2);
  for (size_t i = 0; i < num_adapters(spec); ++i) {
    const OperandSpec& z = operands.next_floating("z", Access::kRead, 2);
    operands.require(z.dtype == base.dtype && z.shape[0] == base.shape[0],
                     "z must be of base's dtype and rows");
    operands.require(are_in_row(a.begin_of(i), a.step, z.shape[1], base.shape[1]),
                     "the columns of z must lie in a row of base");
  }
  operands.expect("y", Access::kWrite, base.dtype, base.shape);
  operands.done();
}

void check_adapter_grad(const OpSpec& spec) {
  const auto a = attributes_of<AdapterGradAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& dy = operands.next_floating("dy", Access::kRead, 2);
  const OperandSpec& dz = operands.next("dz", Access::kWrite, 2);
  operands.require(dz.dtype == dy.dtype && dz.shape[0] == dy.shape[0],
                   "dz must be of dy's dtype and rows");
  operands.require(are_in_row(a.begin, a.step, dz.shape[1], dy.shape[1]),
                   "the columns of dz must lie in a row of dy");
  operands.done();
}

/// Reads as many columns of dy as dz has.
OpCost adapter_grad_cost(const OpSpec& spec) {
  OpCost cost = elementwise_cost<0>(spec);
  cost.flops = elems(spec, 1);
  cost.bytes_read = cost.bytes_written;
  return cost;
}

void add_adapters_backward(BackwardBuilder& builder, const Node& node) {
  const auto a = attributes_of<AddAdaptersAttributes>(node.spec);
  const std::optional<ValueId> dy = builder.grad_of(node.operands.back());
  if (!dy) {
    return;
  }
  for (size_t i = 0; i + 2 < node.operands.size(); ++i) {
    const ValueId z = node.operands[i + 1];
    const ValueId dz = builder.new_grad(z);
    builder.add_node(node, "adapter_grad",
                     to_attributes(AdapterGradAttributes{
                         .scale = a.scale, .step = a.step, .begin = a.begin_of(i)}),
                     std::array{Operand{*dy}, Operand{dz, Access::kWrite}}, Phase::kDgrad);
    builder.add_grad(node, z, dz);
  }
  builder.add_grad(node, node.operands[0], *dy);
}

}  // namespace

const OpDefinition kAddAdaptersOp{
    .name = "add_adapters",
    .summary = "y = base, plus scale * z in the columns of each z.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_add_adapters,
    .cost = elementwise_cost<2>,
    .backward = add_adapters_backward,
    .split = kSplitByRows,
};

const OpDefinition kAdapterGradOp{
    .name = "adapter_grad",
    .summary = "dz = scale * dy in the columns of z.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kElementwise,
    .check = check_adapter_grad,
    .cost = adapter_grad_cost,
    .split = kSplitByRows,
};

bool are_in_row(int64_t begin, int64_t step, int64_t size, int64_t width) {
  return begin >= 0 && step > 0 && size > 0 && begin + (size - 1) * step < width;
}

AddAdaptersAttributes adapters_attributes(std::span<const Adapter> adapters, double scale,
                                          std::string_view site) {
  check(!adapters.empty() && adapters.size() <= kMostAdapters, "{} adapters at {}", adapters.size(),
        site);
  AddAdaptersAttributes attributes{.scale = scale, .step = adapters.front().columns.step};
  const std::array begins{&attributes.begin, &attributes.second_begin, &attributes.third_begin};
  for (size_t i = 0; i < adapters.size(); ++i) {
    check(adapters[i].columns.step == attributes.step, "adapters at {} differ in their step", site);
    *begins[i] = adapters[i].columns.begin;
  }
  return attributes;
}

ValueId add_adapters(GraphBuilder& builder, ValueId base, std::span<const Adapter> adapters,
                     double scale, std::string_view site) {
  const AddAdaptersAttributes attributes = adapters_attributes(adapters, scale, site);
  const Value like = builder.value(base);
  const ValueId y = builder.add_activation(site, like.dtype, like.shape);
  std::vector<Operand> operands{{base}};
  for (const Adapter& adapter : adapters) {
    operands.push_back({adapter.z});
  }
  operands.push_back({y, Access::kWrite});
  builder.add_node("add_adapters", to_attributes(attributes), operands, site);
  return y;
}

}  // namespace braid
