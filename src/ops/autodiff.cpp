#include "ops/autodiff.h"

#include <array>
#include <utility>

#include "base/errors.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// Whether a gradient has arrived for anything that the node writes.
bool leads_to_loss(const BackwardBuilder& builder, const Node& node) {
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (writes(node.spec.operands[i].access) && builder.grad_of(node.operands[i])) {
      return true;
    }
  }
  return false;
}

}  // namespace

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

ValueId BackwardBuilder::add_activation(ValueId like, std::string_view suffix) {
  Value made = value(like);
  made.name += suffix;
  made.kind = ValueKind::kActivation;  // also where the forward value is an input or an output
  const ValueId id(graph_.values.size());
  graph_.values.push_back(std::move(made));
  return id;
}

ValueId BackwardBuilder::new_grad(ValueId forward_value) {
  return add_activation(forward_value, grads_[forward_value.index()] ? ".grad_addend" : ".grad");
}

void BackwardBuilder::add_grad(const Node& forward_node, ValueId forward_value, ValueId grad) {
  const Value& like = value(forward_value);
  check(like.kind != ValueKind::kParam, "op {} at {} gives no main grad to its parameter {}",
        forward_node.spec.op, forward_node.site, like.name);
  std::optional<ValueId>& total = grads_[forward_value.index()];
  if (!total) {
    total = grad;
    return;
  }
  const ValueId sum_id = add_activation(forward_value, ".grad_sum");
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
    if (op.backward != nullptr) {
      op.backward(builder, *node);
    } else {
      check(!leads_to_loss(builder, *node), "op {} at {} has no backward", op.name, node->site);
    }
  }
}

}  // namespace braid
