#include "ops/autodiff.h"

#include <array>
#include <utility>

#include "base/errors.h"
#include "ops/operand_checker.h"

namespace braid {

BackwardBuilder::BackwardBuilder(StageGraph& graph) : graph_(graph), grads_(graph.values.size()) {}

const Value& BackwardBuilder::value(ValueId id) const {
  return graph_.value(id);
}

std::optional<ValueId> BackwardBuilder::grad_of(ValueId forward_value) const {
  return grads_[forward_value.index()];
}

bool BackwardBuilder::wants_grad(ValueId forward_value) const {
  return value(forward_value).kind == ValueKind::kActivation;
}

ValueId BackwardBuilder::new_grad(ValueId forward_value) {
  Value grad = value(forward_value);
  grad.name += grads_[forward_value.index()] ? ".grad_addend" : ".grad";
  const ValueId id(graph_.values.size());
  graph_.values.push_back(std::move(grad));
  return id;
}

void BackwardBuilder::add_grad(const Node& forward_node, ValueId forward_value, ValueId grad) {
  std::optional<ValueId>& total = grads_[forward_value.index()];
  if (!total) {
    total = grad;
    return;
  }
  Value sum = value(forward_value);
  sum.name += ".grad_sum";
  const ValueId sum_id(graph_.values.size());
  graph_.values.push_back(std::move(sum));
  add_node(forward_node, "add", {},
           std::array{Operand{*total}, Operand{grad}, Operand{sum_id, Access::kWrite}},
           Phase::kDgrad);
  total = sum_id;
}

ValueId BackwardBuilder::main_grad(ValueId param) {
  const Value weight = value(param);
  check(weight.kind == ValueKind::kParam, "{} is not a parameter", weight.name);
  Value grad{.name = weight.name,
             .dtype = accumulator_dtype(weight.dtype),
             .shape = weight.shape,
             .kind = ValueKind::kMainGrad};
  const auto [entry, inserted] = main_grads_.try_emplace(param, ValueId(graph_.values.size()));
  if (inserted) {
    graph_.values.push_back(std::move(grad));
  }
  return entry->second;
}

void BackwardBuilder::add_node(const Node& forward_node, std::string op,
                               std::vector<Attribute> attributes, std::span<const Operand> operands,
                               Phase phase) {
  Node node = make_node(graph_, std::move(op), std::move(attributes), operands);
  node.phase = phase;
  node.layer = forward_node.layer;
  node.site = forward_node.site;
  graph_.backward.push_back(std::move(node));
}

void differentiate(StageGraph& graph) {
  check(graph.backward.empty(), "the graph has a backward already");
  BackwardBuilder builder(graph);
  for (auto node = graph.forward.rbegin(); node != graph.forward.rend(); ++node) {
    const OpDefinition& op = find_op(node->spec.op);
    check(op.backward != nullptr, "op {} at {} has no backward", op.name, node->site);
    op.backward(builder, *node);
  }
}

}  // namespace braid
