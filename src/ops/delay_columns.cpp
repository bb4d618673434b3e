#include "ops/delay_columns.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "ops/attributes.h"
#include "ops/quantize.h"

namespace braid {
namespace {

bool reads_any(const Node& node, std::span<const ValueId> values) {
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (reads(node.spec.operands[i].access) &&
        std::ranges::find(values, node.operands[i]) != values.end()) {
      return true;
    }
  }
  return false;
}

/// A forward node that makes copies of a value in both directions.
class BothCopies {
 public:
  explicit BothCopies(const Node& node)
      : node_(node), attributes_(attributes_of<QuantizeAttributes>(node.spec)), at_(attributes_) {}

  /// Whether two nodes may make the copies: of a stored value, with scales found from a part of it.
  bool can_be_apart() const {
    return attributes_.row && attributes_.column && attributes_.source.of.empty() &&
           attributes_.block != 0;
  }
  ValueId value() const { return node_.operands[0]; }
  std::array<ValueId, 2> columns() const { return {operand(at_.column), operand(at_.column + 1)}; }

  Node rows_alone(const StageGraph& graph) const { return with(graph, at_.row, true); }
  Node columns_alone(const StageGraph& graph) const {
    Node node = with(graph, at_.column, false);
    node.phase = Phase::kDgrad;
    return node;
  }

 private:
  ValueId operand(int at) const { return node_.operands[static_cast<size_t>(at)]; }

  /// With the copy at that operand alone. Both count in the same tally.
  Node with(const StageGraph& graph, int copy, bool row) const {
    QuantizeAttributes attributes = attributes_;
    attributes.row = row;
    attributes.column = !row;
    std::vector<Operand> operands{
        {value()}, {operand(copy), Access::kWrite}, {operand(copy + 1), Access::kWrite}};
    if (at_.tally >= 0) {
      operands.push_back({operand(at_.tally), Access::kReadWrite});
    }
    Node node = make_node(graph, node_.spec.op, to_attributes(attributes), operands);
    node.phase = node_.phase;
    node.layer = node_.layer;
    node.site = node_.site;
    return node;
  }

  const Node& node_;
  QuantizeAttributes attributes_;
  QuantizeOperands at_;
};

}  // namespace

void delay_columns(StageGraph& graph) {
  for (Node& node : graph.forward) {
    if (node.spec.op != kQuantizeOp.name) {
      continue;
    }
    const BothCopies both(node);
    if (!both.can_be_apart()) {
      continue;
    }
    const auto reads_one_of = [](std::span<const ValueId> values) {
      return [values](const Node& it) { return reads_any(it, values); };
    };
    const std::array value{both.value()};
    const std::array columns = both.columns();
    const auto reader = std::ranges::find_if(graph.backward, reads_one_of(columns));
    if (reader == graph.backward.end() ||
        std::ranges::none_of(graph.backward, reads_one_of(value))) {
      continue;
    }
    graph.backward.insert(reader, both.columns_alone(graph));
    node = both.rows_alone(graph);
  }
}

}  // namespace braid
