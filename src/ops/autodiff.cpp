#include "ops/autodiff.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

/// Whether any output of the node has a gradient.
bool leads_to_loss(const BackwardBuilder& builder, const Node& node) {
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (writes(node.spec.operands[i].access) && builder.grad_of(node.operands[i])) {
      return true;
    }
  }
  return false;
}

}  // namespace

BackwardBuilder::BackwardBuilder(StageGraph& graph, DType main_grads)
    : graph_(graph),
      main_grads_dtype_(main_grads),
      is_trained_(graph.values.size(), false),
      grads_(graph.values.size()) {
  find_trained();
}

/// Without frozen weights, everything counts as trained; and so does what comes from another stage,
/// which may have trained weights.
void BackwardBuilder::find_trained() {
  if (std::ranges::none_of(graph_.values, &Value::frozen)) {
    is_trained_.assign(graph_.values.size(), true);
    return;
  }
  for (size_t i = 0; i < graph_.values.size(); ++i) {
    const Value& value = graph_.values[i];
    is_trained_[i] =
        value.kind == ValueKind::kActivation || (value.kind == ValueKind::kParam && !value.frozen);
  }
  for (const Node& node : graph_.forward) {
    bool reads_nothing = true;
    bool trained = false;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (reads(node.spec.operands[i].access)) {
        reads_nothing = false;
        trained = trained || is_trained_[node.operands[i].index()];
      }
    }
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (writes(node.spec.operands[i].access)) {
        is_trained_[node.operands[i].index()] = trained || reads_nothing;
      }
    }
  }
}

bool BackwardBuilder::leads_to_trained(const Node& forward_node) const {
  return std::ranges::any_of(forward_node.operands,
                             [&](ValueId id) { return is_trained_[id.index()]; });
}

const Value& BackwardBuilder::value(ValueId id) const {
  return graph_.value(id);
}

std::optional<ValueId> BackwardBuilder::grad_of(ValueId forward_value) const {
  return grads_[forward_value.index()];
}

const Node& BackwardBuilder::producer_of(ValueId forward_value) const {
  for (const Node& node : graph_.forward) {
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (node.operands[i] == forward_value && writes(node.spec.operands[i].access)) {
        return node;
      }
    }
  }
  throw_internal_error("no op writes {}", value(forward_value).name);
}

bool BackwardBuilder::wants_grad(ValueId forward_value) const {
  return value(forward_value).kind == ValueKind::kActivation && is_trained_[forward_value.index()];
}

ValueId BackwardBuilder::add_activation(ValueId like, std::string_view suffix) {
  Value made = value(like);
  made.name += suffix;
  made.kind = ValueKind::kActivation;  // also if the forward value is an input or an output
  return new_activation(std::move(made));
}

ValueId BackwardBuilder::new_activation(Value value) {
  const ValueId id(graph_.values.size());
  graph_.values.push_back(std::move(value));
  return id;
}

ValueId BackwardBuilder::new_grad(ValueId forward_value) {
  return add_activation(forward_value, grads_[forward_value.index()] ? ".grad_addend" : ".grad");
}

ValueId BackwardBuilder::receive_grad(ValueId forward_value) {
  check(!grads_[forward_value.index()], "{} has a gradient already", value(forward_value).name);
  const ValueId grad = new_grad(forward_value);
  grads_[forward_value.index()] = grad;
  return grad;
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
  if (weight.frozen) {
    grad.name += ".unread_grad";
    grad.kind = ValueKind::kActivation;
    return *unread_.insert(new_activation(std::move(grad))).first;
  }
  if (weight.dtype == DType::kBF16) {
    grad.dtype = main_grads_dtype_;
  }
  const auto [entry, inserted] = main_grads_.try_emplace(param, ValueId(graph_.values.size()));
  if (inserted) {
    graph_.values.push_back(std::move(grad));
  }
  return entry->second;
}

void BackwardBuilder::overwrite_unread(std::vector<Operand>& operands,
                                       std::vector<Attribute>& attributes) const {
  for (Operand& operand : operands) {
    operand.access = is_unread(operand) ? Access::kWrite : operand.access;
    check(value(operand.value).kind != ValueKind::kMainGrad,
          "a node has gradients of frozen and of trained weights");
  }
  for (Attribute& attribute : attributes) {
    if (attribute.name == "accumulate") {
      attribute.value = false;
    }
  }
}

void BackwardBuilder::add_node(const Node& forward_node, std::string op,
                               std::vector<Attribute> attributes, std::span<const Operand> operands,
                               Phase phase) {
  std::vector<Operand> used(operands.begin(), operands.end());
  if (std::ranges::any_of(used, [&](const Operand& operand) { return is_unread(operand); })) {
    const auto is_read = [&](const Operand& operand) {
      return writes(operand.access) && !is_unread(operand);
    };
    if (std::ranges::none_of(used, is_read)) {
      return;
    }
    overwrite_unread(used, attributes);
  }
  Node node = make_node(graph_, std::move(op), std::move(attributes), used);
  node.phase = phase;
  node.layer = forward_node.layer;
  node.site = forward_node.site;
  graph_.backward.push_back(std::move(node));
}

void differentiate(StageGraph& graph, DType main_grads) {
  check(graph.backward.empty(), "the graph has a backward already");
  BackwardBuilder builder(graph, main_grads);
  if (graph.stage_output) {
    graph.stage_output_grad = builder.receive_grad(*graph.stage_output);
  }
  for (auto node = graph.forward.rbegin(); node != graph.forward.rend(); ++node) {
    const OpDefinition& op = find_op(node->spec.op);
    if (!builder.leads_to_trained(*node)) {
      continue;
    }
    if (op.backward != nullptr) {
      op.backward(builder, *node);
    } else {
      check(!leads_to_loss(builder, *node), "op {} at {} has no backward", op.name, node->site);
    }
  }
  if (graph.stage_input) {
    graph.stage_input_grad = builder.grad_of(*graph.stage_input);
    check(graph.stage_input_grad.has_value(), "the stage's input does not lead to its end");
  }
}

}  // namespace braid
