#include "ops/graph.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "ops/op.h"
#include "ops/operand_checker.h"

namespace braid {

void GraphBuilder::set_scope(int32_t layer, std::string prefix) {
  layer_ = layer;
  prefix_ = std::move(prefix);
}

ValueId GraphBuilder::add_value(Value value) {
  const ValueId id(graph_.values.size());
  graph_.values.push_back(std::move(value));
  return id;
}

ValueId GraphBuilder::named_value(const Value& value) {
  const auto [entry, inserted] = named_.try_emplace(value.name, ValueId());
  if (inserted) {
    entry->second = add_value(value);
  }
  check(graph_.value(entry->second) == value, "value {} is used with two different types",
        value.name);
  return entry->second;
}

ValueId GraphBuilder::add_activation(std::string_view name, DType dtype, const Shape& shape) {
  return add_value(
      {.name = scoped(name), .dtype = dtype, .shape = shape, .kind = ValueKind::kActivation});
}

int64_t GraphBuilder::group(std::string_view name) {
  const auto found = std::find(graph_.groups.begin(), graph_.groups.end(), name);
  const auto index = found - graph_.groups.begin();
  if (found == graph_.groups.end()) {
    graph_.groups.emplace_back(name);
  }
  return index;
}

void GraphBuilder::add_node(std::string op, std::vector<Attribute> attributes,
                            std::span<const Operand> operands, std::string_view site) {
  graph_.forward.push_back(make_node(graph_, std::move(op), std::move(attributes), operands));
  Node& node = graph_.forward.back();
  const bool communicates = find_op(node.spec.op).op_class == OpClass::kCommunication;
  node.phase = communicates ? Phase::kComm : Phase::kForward;
  node.layer = layer_;
  node.site = scoped(site);
}

std::string GraphBuilder::scoped(std::string_view name) const {
  return prefix_.empty() ? std::string(name) : fmt::format("{}.{}", prefix_, name);
}

namespace {

DType operand_dtype(const OpDefinition& op, const Value& value) {
  return value.kind == ValueKind::kMainGrad && !op.narrow_main_grads
             ? accumulator_dtype(value.dtype)
             : value.dtype;
}

}  // namespace

Node make_node(const StageGraph& graph, std::string op, std::vector<Attribute> attributes,
               std::span<const Operand> operands) {
  Node node;
  node.spec.op = std::move(op);
  node.spec.attributes = std::move(attributes);
  const OpDefinition& definition = find_op(node.spec.op);
  for (const Operand& operand : operands) {
    const Value& value = graph.value(operand.value);
    node.spec.operands.push_back({.dtype = operand_dtype(definition, value),
                                  .access = operand.access,
                                  .shape = value.shape});
    node.operands.push_back(operand.value);
  }
  check_spec(node.spec);
  return node;
}

}  // namespace braid
