#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/program.h"
#include "ops/graph.h"
#include "parallel/parameter_layout.h"

namespace braid {

class UnitBuffers;

/// Where an input or output of a stage graph lies: element [microbatch * stride_elems, + elements
/// of the value).
struct IoBinding {
  BufferId buffer;
  int64_t stride_elems = 0;
};

/// Which nodes of a backward: all, or those that lead to the stage's input (dgrad, with the
/// communication between them), or those that only make gradients of matrices (wgrad).
enum class BackwardPart : uint8_t { kAll, kDgrad, kWgrad };

/// Turns the nodes of a stage graph into tasks, one microbatch at a time: parameters and their
/// gradients become ranges of their units' flat buffers, inputs and outputs ranges of io buffers,
/// activations one step buffer per value and microbatch.
class StageExpander {
 public:
  struct Bindings {
    UnitBuffers* units = nullptr;
    std::unordered_map<std::string, IoBinding> io;
  };
  struct Place {
    std::string prefix;  ///< of activation buffers
    int32_t virtual_stage = 0;
    std::vector<GroupId> groups = {};  ///< of the program, by index into StageGraph::groups
  };

  /// All arguments but `place` must outlive the expander.
  StageExpander(ProgramBuilder& builder, const StageGraph& graph, const ParameterLayout& layout,
                const Bindings& bindings, Place place);

  void add_forward(int32_t microbatch, StreamId stream);
  /// The first write to each gradient range overwrites it, so nothing needs to be zeroed.
  void add_backward(int32_t microbatch, StreamId stream, BackwardPart part);

  /// The buffer of an activation, made at first use.
  BufferId buffer(ValueId activation, int32_t microbatch);
  /// The activation lies in a buffer of another stage; before its first use.
  void bind(ValueId activation, int32_t microbatch, BufferId buffer);

 private:
  void add_node(const Node& node, int32_t microbatch, StreamId stream);
  BufferRange range_of(ValueId id, int32_t microbatch);
  /// With the program's group, and with accumulation turned off if nothing has been written yet to
  /// the gradients that the node adds to.
  OpSpec spec_of(const Node& node, size_t num_gradients, size_t num_first);

  ProgramBuilder& builder_;
  const StageGraph& graph_;
  const ParameterLayout& layout_;
  const Bindings& bindings_;
  Place place_;
  std::vector<std::string> value_names_;                ///< unique, by value
  std::unordered_map<uint64_t, BufferId> activations_;  ///< by microbatch and value
};

}  // namespace braid
