#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/program.h"
#include "ops/graph.h"
#include "parallel/parameter_layout.h"

namespace braid {

class Fp8Parts;
class UnitBuffers;

/// Location of an input or output of a stage graph: as many elements of a buffer as the value has,
/// from begin + microbatch * stride_elems on.
struct IoBinding {
  BufferId buffer;
  int64_t stride_elems = 0;
  int64_t begin = 0;
};

/// Nodes of a backward to add: all; kDgrad: those that lead to the gradient of the stage's input,
/// including communication between them; kWgrad: those that only compute gradients of weight
/// matrices.
enum class BackwardPart : uint8_t { kAll, kDgrad, kWgrad };

/// Turns the nodes of a stage graph into tasks, one microbatch at a time. Values of kind kOfWeights
/// are made by the first microbatch, for all. Parameters and gradients
/// become ranges of the flat buffers of their units, inputs and outputs become ranges of io
/// buffers, and each activation becomes one step buffer per microbatch.
class StageExpander {
 public:
  struct Bindings {
    UnitBuffers* units = nullptr;
    const Fp8Parts* fp8_parts = nullptr;  ///< null: there are none
    std::unordered_map<std::string, IoBinding> io;
    std::unordered_map<std::string, BufferRange> tallies;  ///< by name of the value
  };
  struct Place {
    std::string prefix;  ///< of activation buffer names
    int32_t virtual_stage = 0;
    std::vector<GroupId> groups = {};  ///< groups of the program, by index into StageGraph::groups
  };

  /// All arguments except `place` must outlive the expander.
  StageExpander(ProgramBuilder& builder, const StageGraph& graph, const ParameterLayout& layout,
                const Bindings& bindings, Place place);

  void add_forward(int32_t microbatch, StreamId stream);
  /// The first write to each gradient range overwrites it, so gradients need no zeroing. Nodes
  /// whose gradients are wider than the main grads write them to buffers of their own; a task then
  /// adds each to its main grad.
  void add_backward(int32_t microbatch, StreamId stream, BackwardPart part);

  /// Returns the buffer of an activation. Creates it at first use.
  BufferId buffer(ValueId activation, int32_t microbatch);
  /// Places the activation in a buffer of another stage. Must be called before its first use.
  void bind(ValueId activation, int32_t microbatch, BufferId buffer);

 private:
  /// What is the same for all microbatches of a node.
  struct Prepared {
    OpSpec spec;  ///< if all its gradients are there already
    SiteId site;
  };

  void add_node(const Node& node, int32_t microbatch, StreamId stream);
  const Prepared& prepared(const Node& node);
  const ParameterSlot& slot_of(ValueId parameter);
  /// Whether an earlier microbatch has made all that the node writes.
  bool is_made(const Node& node) const;
  bool makes_weight_copies(const Node& node) const;
  /// Adds the nodes that make the FP8 copies of weights that `node` reads, unless these exist for
  /// the buffer that holds the weight now, or ranks gather them.
  void prepare_weights(const Node& node, int32_t microbatch, StreamId stream);
  /// Finds the copies of a weight among those that ranks gather, before `reader` reads `copy`, one
  /// of them. Rows are gathered, and columns are rows transposed. False: it is gathered otherwise.
  bool find_gathered(const Node& maker, ValueId copy, const Node& reader, int32_t microbatch,
                     StreamId stream);
  void add_transposed(const Node& maker, BufferRange rows, const Node& reader, int32_t microbatch,
                      StreamId stream);
  /// Changes a node that makes copies of a weight if there are only main weights to make them from.
  void read_main_weights(Node& maker) const;
  BufferId add_copy(const Node& maker, size_t operand, BufferId source);
  BufferRange range_of(ValueId id, int32_t microbatch);
  BufferId& place_of(ValueId activation, int32_t microbatch);
  /// Where a node writes the gradient of a slot in this dtype: in the main grad, or, if that is
  /// narrower, in a buffer of its own, from which `add_wide_gradients` brings it there.
  struct GradientPlace {
    BufferRange range;  ///< that the node writes
    BufferRange main_grad;
    bool is_first = false;  ///< no earlier task has written the main grad
    bool is_wide = false;   ///< `range` is another buffer
  };
  GradientPlace gradient_place(const Node& node, size_t operand, int32_t microbatch);
  /// main grad (+)= wide gradient, rounded once, for those of the node that was just added.
  void add_wide_gradients(StreamId stream, const Label& label);
  /// The node's spec with the program's group. Disables accumulation if no earlier task has written
  /// the gradients of the node.
  OpSpec spec_of(const Node& node, size_t num_gradients, size_t num_first);

  ProgramBuilder& builder_;
  const StageGraph& graph_;
  const ParameterLayout& layout_;
  const Bindings& bindings_;
  Place place_;
  std::vector<std::string> value_names_;                ///< unique, by value
  std::vector<const ParameterSlot*> slots_;             ///< by value; null: not looked up yet
  std::unordered_map<const Node*, Prepared> prepared_;  ///< nodes of the graph
  std::vector<BufferRange> ranges_;                     ///< of the node that is added
  std::vector<GradientPlace> wide_;                     ///< likewise: its wide gradients
  std::map<std::string, int> wide_names_;               ///< and how many buffers have had them
  std::unordered_map<int32_t, std::vector<BufferId>> activations_;  ///< by microbatch and value
  std::unordered_map<ValueId, BufferId> of_weights_;
  std::unordered_map<ValueId, const Node*> weight_nodes_;   ///< by each value that they make
  std::unordered_map<ValueId, BufferRange> weight_copies_;  ///< of the weights as they are now
  std::unordered_map<const Node*, BufferId> copied_from_;   ///< what weight_copies_ were made from
};

}  // namespace braid
