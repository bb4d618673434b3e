#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/program.h"
#include "ops/graph.h"
#include "parallel/parameter_layout.h"

namespace braid {

/// Where an input or output of a stage graph lies: element [microbatch * stride_elems, + elements
/// of the value).
struct IoBinding {
  BufferId buffer;
  int64_t stride_elems = 0;
};

/// Turns the nodes of a stage graph into tasks, one microbatch at a time: parameters and main grads
/// become ranges of their units' flat buffers, inputs and outputs ranges of io buffers, activations
/// one step buffer per value and microbatch.
class StageExpander {
 public:
  struct Bindings {
    std::vector<BufferId> params;      ///< by unit of the layout
    std::vector<BufferId> main_grads;  ///< by unit; empty where there is no backward
    std::unordered_map<std::string, IoBinding> io;
  };

  /// `prefix` starts the names of activation buffers. All arguments must outlive the expander.
  StageExpander(ProgramBuilder& builder, const StageGraph& graph, const ParameterLayout& layout,
                const Bindings& bindings, std::string prefix);

  void add_forward(int32_t microbatch, StreamId stream);
  /// The first accumulation into each main grad range of the program overwrites it, so nothing
  /// needs to be zeroed.
  void add_backward(int32_t microbatch, StreamId stream);

 private:
  void add_node(const Node& node, int32_t microbatch, StreamId stream);
  BufferRange range_of(ValueId id, int32_t microbatch);
  BufferId activation(ValueId id, int32_t microbatch);
  /// `spec` with accumulation turned off if none of the node's main grads has been written yet.
  OpSpec first_accumulation_overwrites(const Node& node);

  ProgramBuilder& builder_;
  const StageGraph& graph_;
  const ParameterLayout& layout_;
  const Bindings& bindings_;
  std::string prefix_;
  std::vector<std::string> value_names_;                ///< unique, by value
  std::unordered_map<uint64_t, BufferId> activations_;  ///< by microbatch and value
  std::unordered_set<ValueId> accumulated_;             ///< main grads written so far
};

}  // namespace braid
