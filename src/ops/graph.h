#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "ir/program.h"

namespace braid {

using ValueId = Id<struct ValueTag>;
using NodeId = Id<struct NodeTag>;

enum class ValueKind : uint8_t {
  kInput,           ///< io: token ids, labels, scalars, written by the host
  kOutput,          ///< io: read by the host, for example the loss
  kParam,           ///< a weight in compute dtype
  kQuantizedParam,  ///< an FP8 copy of a weight, or its scales; a node of StageGraph::weights makes
                    ///< it
  kOfWeights,       ///< depends on weights alone: forward nodes that write nothing else run once in
                    ///< a step
  kTally,           ///< numbers to which tasks of a step add, read by the host
  kCache,           ///< what later runs need of earlier ones (token_cache.h), written by tasks
  kMainGrad,        ///< gradient accumulator of a weight: fp32, or bf16 of a bf16 weight
  kActivation,      ///< everything else: forward values and gradients with respect to them
};

/// A tensor in a stage graph. Params and main grads have the parameter's name; a parameter used
/// twice (tied embeddings) is one value.
struct Value {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  ValueKind kind = ValueKind::kActivation;
  bool frozen = false;  ///< of kParam: training does not change it, so it has no gradient

  friend bool operator==(const Value&, const Value&) = default;
};

/// One op on values: becomes one task per microbatch. `operands` are parallel to `spec.operands`.
struct Node {
  OpSpec spec;
  std::vector<ValueId> operands;
  Phase phase = Phase::kForward;
  int32_t layer = -1;
  std::string site;
};

/// The ops of one microbatch of one virtual stage on this rank: `forward` from the model,
/// `backward` from autodiff (dgrad and wgrad nodes in the natural order). Activations that backward
/// nodes read are saved without further marking: live ranges follow from use.
struct StageGraph {
  std::vector<Value> values;
  std::vector<Node> forward;
  std::vector<Node> backward;
  /// Nodes that make values of kind kQuantizedParam from weights. Each runs in front of the first
  /// node that reads its results: once per step, or once per job if the weight is gathered for each
  /// job.
  std::vector<Node> weights;
  /// Names of the groups of ranks in which nodes communicate ("tensor"); their attribute `group` is
  /// an index into this vector. The code that expands the graph knows the ranks.
  std::vector<std::string> groups;

  /// The values received from the previous stage and sent to the next one, and, in a graph with a
  /// backward, the gradients in the opposite direction. Activations; unset at the ends of a
  /// pipeline.
  std::optional<ValueId> stage_input;
  std::optional<ValueId> stage_output;
  std::optional<ValueId> stage_input_grad;
  std::optional<ValueId> stage_output_grad;

  const Value& value(ValueId id) const { return values[id.index()]; }
};

/// A value and its access by a node.
struct Operand {
  ValueId value;
  Access access = Access::kRead;
};

/// A node whose operand types are those of the values; its spec is checked (`check_spec`). Where
/// the op does not write narrow main grads (OpDefinition), its operand is fp32 for a bf16 value.
Node make_node(const StageGraph& graph, std::string op, std::vector<Attribute> attributes,
               std::span<const Operand> operands);

/// Adds forward nodes and their values.
class GraphBuilder {
 public:
  explicit GraphBuilder(StageGraph& graph) : graph_(graph) {}

  /// Sets layer and name prefix of later nodes and values, for example 3 and "layers.3".
  void set_scope(int32_t layer, std::string prefix);

  ValueId add_value(Value value);
  /// The value of that full name, created on first use; later uses must agree in dtype, shape and
  /// kind.
  ValueId named_value(const Value& value);
  /// A new activation "<prefix>.<name>".
  ValueId add_activation(std::string_view name, DType dtype, const Shape& shape);

  const Value& value(ValueId id) const { return graph_.value(id); }

  int32_t layer() const { return layer_; }

  /// Index of the group of that name in StageGraph::groups, added at first use.
  int64_t group(std::string_view name);

  /// `site` is the place inside the scope ("attention.qkv"). Values that the node writes must
  /// already exist.
  void add_node(std::string op, std::vector<Attribute> attributes,
                std::span<const Operand> operands, std::string_view site);

  /// "<prefix>.<name>".
  std::string scoped(std::string_view name) const;

 private:
  StageGraph& graph_;
  std::unordered_map<std::string, ValueId> named_;
  int32_t layer_ = -1;
  std::string prefix_;
};

}  // namespace braid
