#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// The interface for an op's backward rule: it queries gradients of results, adds nodes, and
/// provides gradients of operands.
class BackwardBuilder {
 public:
  /// `main_grads`: dtype of the main grads of bf16 weights, kF32 or kBF16.
  explicit BackwardBuilder(StageGraph& graph, DType main_grads = DType::kF32);

  const Value& value(ValueId id) const;

  /// Sum of the gradients of a forward value so far; nullopt if no node that leads to the loss uses
  /// it.
  std::optional<ValueId> grad_of(ValueId forward_value) const;

  /// The forward node that writes a value. Throws InternalError if there is none.
  const Node& producer_of(ValueId forward_value) const;

  /// True for activations that trained weights lead to, which need a gradient; false for inputs
  /// such as token ids, and for what only frozen weights lead to.
  bool wants_grad(ValueId forward_value) const;

  /// Whether the node has a result that `wants_grad`, or a trained weight.
  bool leads_to_trained(const Node& forward_node) const;

  /// A new activation value of the forward value's dtype and shape: "<name of forward>.grad", or
  /// ".grad_addend" if it already has a gradient.
  ValueId new_grad(ValueId forward_value);

  /// A new value for a rule that adds several nodes.
  ValueId new_activation(Value value);

  /// A gradient from outside the graph, before all others: a new activation value that no node
  /// writes.
  ValueId receive_grad(ValueId forward_value);

  /// Adds `grad` as one addend of the gradient of `forward_value`; from the second addend on, adds
  /// an `add` node. Gradients of parameters go to their main grads instead.
  void add_grad(const Node& forward_node, ValueId forward_value, ValueId grad);

  /// The main grad of a kParam value, fp32 (f64 for f64 weights) or narrow: kind kMainGrad, the
  /// parameter's name; all uses of a parameter share one. Of a frozen parameter, a value that no
  /// one reads.
  ValueId main_grad(ValueId param);

  /// Appends a backward node; layer and site are those of `forward_node`. Dtypes and shapes come
  /// from the values. A node that writes nothing but gradients of frozen parameters is left out;
  /// one that writes them beside something else (norms) overwrites them.
  void add_node(const Node& forward_node, std::string op, std::vector<Attribute> attributes,
                std::span<const Operand> operands, Phase phase);

 private:
  ValueId add_activation(ValueId like, std::string_view suffix);

  void find_trained();
  /// Of a node with gradients that no one reads: they have no earlier values to add to.
  void overwrite_unread(std::vector<Operand>& operands, std::vector<Attribute>& attributes) const;
  bool is_unread(const Operand& operand) const { return unread_.contains(operand.value); }

  StageGraph& graph_;
  DType main_grads_dtype_;
  std::vector<bool> is_trained_;  // by forward ValueId: a trained weight, or one leads to it
  std::vector<std::optional<ValueId>> grads_;  // by forward ValueId
  std::unordered_map<ValueId, ValueId> main_grads_;
  std::unordered_set<ValueId> unread_;  // gradients of frozen weights
};

/// Builds `graph.backward` from `graph.forward`, last node first. Starts from every loss, and from
/// StageGraph::stage_output_grad, a value that it creates if the graph has a stage output; likewise
/// it sets stage_input_grad. Main grads are always accumulated (`accumulate` = true); the code that
/// expands the graph turns the first accumulation of a step into an overwrite. Throws InternalError
/// naming an op whose result leads to the loss and that has no backward. Frozen weights have no
/// main grads, and nothing is computed for values in front of which no weight is trained.
/// `main_grads`: dtype of the main grads of bf16 weights, kF32 or kBF16.
void differentiate(StageGraph& graph, DType main_grads = DType::kF32);

}  // namespace braid
