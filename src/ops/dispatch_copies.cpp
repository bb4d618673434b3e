#include "ops/dispatch_copies.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/expert_exchange.h"
#include "ops/expert_rows.h"
#include "ops/quantize_gathered.h"
#include "ops/quantize_grouped.h"
#include "ops/transpose_grouped.h"

namespace braid {
namespace {

constexpr size_t kNone = SIZE_MAX;

/// By value: the node of a list that writes it, and the number of nodes of the graph that read it,
/// to which what follows the graph counts.
struct Uses {
  std::vector<size_t> writer;
  std::vector<int> readers;

  Uses(const StageGraph& graph, const std::vector<Node>& list)
      : writer(graph.values.size(), kNone), readers(graph.values.size()) {
    for (size_t i = 0; i < list.size(); ++i) {
      for (size_t k = 0; k < list[i].operands.size(); ++k) {
        if (writes(list[i].spec.operands[k].access)) {
          writer[list[i].operands[k].index()] = i;
        }
      }
    }
    for (const auto* const nodes : {&graph.forward, &graph.backward, &graph.weights}) {
      for (const Node& node : *nodes) {
        for (size_t k = 0; k < node.operands.size(); ++k) {
          readers[node.operands[k].index()] += reads(node.spec.operands[k].access) ? 1 : 0;
        }
      }
    }
    for (const auto& end : {graph.stage_output, graph.stage_input_grad}) {
      if (end) {
        ++readers[end->index()];
      }
    }
  }

  /// The node that writes a value for one reader alone.
  size_t maker_for_one(ValueId value) const {
    return readers[value.index()] == 1 ? writer[value.index()] : kNone;
  }
};

/// The nodes of one exchange: gather_rows, dispatch_rows, quantize_grouped. Between hosts, rows are
/// gathered before they go to a host, too: gather_rows, all_to_all.
struct ExchangeNodes {
  Node* first_gather = nullptr;  ///< null: rows do not go over hosts
  Node* all_to_all = nullptr;
  Node* gather = nullptr;
  Node* dispatch = nullptr;
  Node* copies = nullptr;
};

/// A node that comes behind another one.
struct AddedNode {
  const Node* behind = nullptr;
  Node node;
};

class ExchangeRewriter {
 public:
  ExchangeRewriter(StageGraph& graph, const ExchangeNodes& nodes, std::vector<AddedNode>& added)
      : graph_(graph),
        nodes_(nodes),
        added_(added),
        copies_at_(attributes_of<QuantizeGroupedAttributes>(nodes.copies->spec)) {}

  /// Replaces all of them.
  void rewrite() {
    Node& rounding = nodes_.first_gather != nullptr ? *nodes_.first_gather : *nodes_.gather;
    SentRows sent = fp8_of(rounding.operands.back());
    Node rounded = quantize_gathered(rounding, sent);
    if (nodes_.first_gather != nullptr) {
      sent = gathered(exchanged(sent));
    }
    const SentRows arrived{.rows = row(), .scales = add_scales(nodes_.copies->operands[0])};
    Node dispatched = dispatch(sent, arrived);
    *nodes_.copies = transposed(arrived);
    rounding = std::move(rounded);
    *nodes_.dispatch = std::move(dispatched);
  }

 private:
  struct SentRows {
    ValueId rows;
    ValueId scales;
  };

  DType dtype_of(ValueId value) const { return graph_.value(value).dtype; }
  ValueId copies_operand(int at) const { return nodes_.copies->operands[static_cast<size_t>(at)]; }
  SentRows fp8_of(ValueId rows) {
    return {.rows = add_value(rows, "row", dtype_of(row())), .scales = add_scales(rows)};
  }

  /// The same node for rows and for their scales.
  SentRows moved(Node& node, const SentRows& from) {
    const SentRows to = fp8_of(node.operands.back());
    added_.push_back({&node, with_ends(node, from.scales, to.scales)});
    node = with_ends(node, from.rows, to.rows);
    return to;
  }
  SentRows exchanged(const SentRows& from) { return moved(*nodes_.all_to_all, from); }
  SentRows gathered(const SentRows& from) { return moved(*nodes_.gather, from); }

  Node with_ends(const Node& node, ValueId from, ValueId to) const {
    std::vector<Operand> operands;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      operands.push_back({node.operands[i], node.spec.operands[i].access});
    }
    operands.front().value = from;
    operands.back().value = to;
    return node_like(node, find_op(node.spec.op), node.spec.attributes, operands);
  }
  ValueId row() const { return copies_operand(copies_at_.row); }

  ValueId add(Value value) {
    graph_.values.push_back(std::move(value));
    return ValueId(graph_.values.size() - 1);
  }
  /// Another type of a value.
  ValueId add_value(ValueId like, const char* suffix, DType dtype) {
    const Value its = graph_.value(like);
    return add(
        {.name = fmt::format("{}.{}", its.name, suffix), .dtype = dtype, .shape = its.shape});
  }
  ValueId add_scales(ValueId rows) {
    const Value its = graph_.value(rows);
    return add({.name = its.name + ".scales",
                .dtype = QuantizeGroupedAttributes::scales().dtype(),
                .shape = scales_beside_rows(its.shape)});
  }

  /// With the label of another node.
  Node node_like(const Node& like, const OpDefinition& op, std::vector<Attribute> attributes,
                 std::span<const Operand> operands) const {
    Node node = make_node(graph_, std::string(op.name), std::move(attributes), operands);
    node.phase = like.phase;
    node.layer = like.layer;
    node.site = like.site;
    return node;
  }

  /// At the site of the product, where what copies lose is counted.
  Node quantize_gathered(const Node& gather, const SentRows& sent) const {
    const auto moved = attributes_of<MovedRowsAttributes>(gather.spec);
    std::vector<Operand> operands;
    for (size_t i = 0; i + 1 < gather.operands.size(); ++i) {
      operands.push_back({gather.operands[i]});
    }
    operands.push_back({sent.rows, Access::kWrite});
    operands.push_back({sent.scales, Access::kWrite});
    add_tally(operands);
    Node node =
        node_like(gather, kQuantizeGatheredOp,
                  to_attributes(QuantizeGatheredAttributes{
                      .dropped = moved.dropped, .partial = moved.partial, .watch = {watches()}}),
                  operands);
    node.site = nodes_.copies->site;
    return node;
  }

  Node dispatch(const SentRows& sent, const SentRows& arrived) const {
    auto attributes = attributes_of<ExpertExchangeAttributes>(nodes_.dispatch->spec);
    attributes.scales = {true};
    const ExpertExchangeOperands at(nodes_.dispatch->spec);
    std::vector<Operand> operands{{sent.rows}};
    for (int i = 1; i < static_cast<int>(nodes_.dispatch->operands.size()); ++i) {
      const auto place = static_cast<size_t>(i);
      if (i == at.offsets_of_all) {
        operands.push_back({sent.scales});
      }
      operands.push_back({i == at.y ? arrived.rows : nodes_.dispatch->operands[place],
                          nodes_.dispatch->spec.operands[place].access});
      if (i == std::max(at.y, at.y_weights)) {
        operands.push_back({arrived.scales, Access::kWrite});
      }
    }
    return node_like(*nodes_.dispatch, kDispatchRowsOp, to_attributes(attributes), operands);
  }

  Node transposed(const SentRows& arrived) const {
    const bool has_column = copies_at_.column >= 0;
    std::vector<Operand> operands{{arrived.rows},
                                  {arrived.scales},
                                  {nodes_.copies->operands[1]},
                                  {copies_operand(copies_at_.row + 1), Access::kWrite}};
    if (has_column) {
      operands.push_back({copies_operand(copies_at_.column), Access::kWrite});
      operands.push_back({copies_operand(copies_at_.column + 1), Access::kWrite});
      add_tally(operands);
    }
    return node_like(*nodes_.copies, kTransposeGroupedOp,
                     to_attributes(TransposeGroupedAttributes{.column = has_column,
                                                              .watch = {has_column && watches()}}),
                     operands);
  }

  bool watches() const { return copies_at_.tally >= 0; }
  /// Of the copies: those by rows and those by columns count in one.
  void add_tally(std::vector<Operand>& operands) const {
    if (watches()) {
      operands.push_back({copies_operand(copies_at_.tally), Access::kReadWrite});
    }
  }

  StageGraph& graph_;
  const ExchangeNodes& nodes_;
  std::vector<AddedNode>& added_;
  QuantizeGroupedOperands copies_at_;
};

/// The list with the added nodes.
std::vector<Node> merged(std::vector<Node> nodes, std::vector<AddedNode> added) {
  std::vector<Node> all;
  for (Node& node : nodes) {
    const Node* const place = &node;
    all.push_back(std::move(node));
    for (AddedNode& it : added) {
      if (it.behind == place) {
        all.push_back(std::move(it.node));
      }
    }
  }
  return all;
}

void rewrite(StageGraph& graph, std::vector<Node>& nodes) {
  const Uses uses(graph, nodes);
  std::vector<AddedNode> added;
  // The node that makes the first operand of another one for it alone, if it is of that kind.
  const auto maker = [&](const Node* node, const auto& is_kind) -> Node* {
    const size_t found = node == nullptr ? kNone : uses.maker_for_one(node->operands[0]);
    return found != kNone && is_kind(nodes[found].spec) ? &nodes[found] : nullptr;
  };
  const auto gathers = [](const OpSpec& spec) { return spec.op == kGatherRowsOp.name; };
  const auto does = [](CommOp op) {
    return [op](const OpSpec& spec) { return communicates_as(spec, op); };
  };
  for (Node& node : nodes) {
    if (node.spec.op != kQuantizeGroupedOp.name) {
      continue;
    }
    ExchangeNodes exchange{.copies = &node};
    exchange.dispatch = maker(&node, does(CommOp::kDispatchRows));
    exchange.gather = maker(exchange.dispatch, gathers);
    exchange.all_to_all = maker(exchange.gather, does(CommOp::kAllToAll));
    exchange.first_gather = maker(exchange.all_to_all, gathers);
    if (exchange.gather != nullptr) {
      ExchangeRewriter(graph, exchange, added).rewrite();
    }
  }
  if (!added.empty()) {
    nodes = merged(std::move(nodes), std::move(added));
  }
}

}  // namespace

void dispatch_copies(StageGraph& graph) {
  rewrite(graph, graph.forward);
  rewrite(graph, graph.backward);
}

}  // namespace braid
