#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// What an op's backward rule sees: it asks for the gradient of a result, adds nodes, and hands
/// over gradients of operands.
class BackwardBuilder {
 public:
  explicit BackwardBuilder(StageGraph& graph);

  const Value& value(ValueId id) const;

  /// Sum of the gradients that arrived for a forward value so far; nullopt if nothing that leads to
  /// the loss uses it.
  std::optional<ValueId> grad_of(ValueId forward_value) const;

  /// The forward node that writes a value. Throws InternalError if none does.
  const Node& producer_of(ValueId forward_value) const;

  /// True for activations (their gradient is wanted) - false for inputs such as token ids.
  bool wants_grad(ValueId forward_value) const;

  /// A new activation value of the forward value's dtype and shape: "<name of forward>.grad", or
  /// ".grad_addend" if a gradient has arrived already.
  ValueId new_grad(ValueId forward_value);

  /// A new value for a rule that adds several nodes.
  ValueId new_activation(Value value);

  /// A gradient that arrives from outside of the graph, before all others: a new activation value
  /// that no node writes.
  ValueId receive_grad(ValueId forward_value);

  /// Says that `grad` is one addend of the gradient of `forward_value`; a second addend adds an
  /// `add` node. Gradients of parameters go to their main grads instead.
  void add_grad(const Node& forward_node, ValueId forward_value, ValueId grad);

  /// The fp32 main grad (f64 for f64 weights) of a kParam value: kind kMainGrad, the parameter's
  /// name; one value however often the parameter is used.
  ValueId main_grad(ValueId param);

  /// Appends a backward node; layer and site are those of `forward_node`. Dtypes and shapes are
  /// filled in from the values.
  void add_node(const Node& forward_node, std::string op, std::vector<Attribute> attributes,
                std::span<const Operand> operands, Phase phase);

 private:
  ValueId add_activation(ValueId like, std::string_view suffix);

  StageGraph& graph_;
  std::vector<std::optional<ValueId>> grads_;  // by forward ValueId
  std::unordered_map<ValueId, ValueId> main_grads_;
};

/// Fills `graph.backward` from `graph.forward`, last node first. It starts from every loss, and
/// from StageGraph::stage_output_grad, a value that it makes if the graph has a stage output;
/// likewise it sets stage_input_grad. Main grads are always accumulated into (`accumulate` = true);
/// whoever expands the graph turns the first accumulation of a step into an overwrite. Throws
/// InternalError naming an op whose result leads to the loss and that has no backward.
void differentiate(StageGraph& graph);

}  // namespace braid
