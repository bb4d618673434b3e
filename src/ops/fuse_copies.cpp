#include "ops/fuse_copies.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "ops/attributes.h"
#include "ops/quantize.h"

namespace braid {
namespace {

constexpr size_t kNone = SIZE_MAX;

/// Reads of each value by nodes, and by what follows the graph.
std::vector<int> count_readers(const StageGraph& graph) {
  std::vector<int> readers(graph.values.size());
  for (const auto* const nodes : {&graph.forward, &graph.backward, &graph.weights}) {
    for (const Node& node : *nodes) {
      for (size_t i = 0; i < node.operands.size(); ++i) {
        readers[node.operands[i].index()] += reads(node.spec.operands[i].access) ? 1 : 0;
      }
    }
  }
  for (const auto& end : {graph.stage_output, graph.stage_input_grad}) {
    if (end) {
      ++readers[end->index()];
    }
  }
  return readers;
}

Node fused(const StageGraph& graph, const Node& source, const Node& copies) {
  auto attributes = attributes_of<QuantizeAttributes>(copies.spec);
  attributes.source = {source.spec.op, source.spec.attributes};
  std::vector<Operand> operands;
  for (size_t i = 0; i < source.operands.size(); ++i) {
    if (i != find_source_traits(source.spec.op)->result) {
      operands.push_back({source.operands[i], source.spec.operands[i].access});
    }
  }
  for (size_t i = 1; i < copies.operands.size(); ++i) {
    operands.push_back({copies.operands[i], copies.spec.operands[i].access});
  }
  Node node = make_node(graph, copies.spec.op, to_attributes(attributes), operands);
  node.phase = copies.phase;
  node.layer = copies.layer;
  node.site = copies.site;
  return node;
}

void fuse(StageGraph& graph, std::vector<Node>& nodes, const std::vector<int>& readers) {
  std::vector<size_t> maker(graph.values.size(), kNone);  // of a value: a node that can be a source
  std::vector<bool> is_left_out(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    if (const SourceTraits* const source = find_source_traits(node.spec.op)) {
      maker[node.operands[source->result].index()] = i;
    }
    if (node.spec.op != kQuantizeOp.name) {
      continue;
    }
    const size_t value = node.operands[0].index();
    if (maker[value] != kNone && readers[value] == 1) {
      nodes[maker[value]] = fused(graph, nodes[maker[value]], node);
      is_left_out[i] = true;
    }
  }
  size_t place = 0;
  std::erase_if(nodes, [&](const Node&) { return is_left_out[place++]; });
}

}  // namespace

void fuse_copies(StageGraph& graph) {
  const std::vector<int> readers = count_readers(graph);
  fuse(graph, graph.forward, readers);
  fuse(graph, graph.backward, readers);
}

}  // namespace braid
