#include "ops/dispatch_copies.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ops/attributes.h"
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

/// The nodes of one exchange: gather_rows, dispatch_rows, quantize_grouped.
class ExchangeNodes {
 public:
  ExchangeNodes(StageGraph& graph, Node& gather, Node& dispatch, Node& copies)
      : graph_(graph),
        gather_(gather),
        dispatch_(dispatch),
        copies_(copies),
        copies_at_(attributes_of<QuantizeGroupedAttributes>(copies.spec)) {}

  /// Replaces all three.
  void rewrite() {
    const ValueId rows = gather_.operands.back();
    const SentRows sent{.rows = add_value(rows, "row", dtype_of(row())),
                        .scales = add_scales(rows)};
    const SentRows arrived{.rows = row(), .scales = add_scales(copies_.operands[0])};
    Node gathered = quantize_gathered(sent);
    Node dispatched = dispatch(sent, arrived);
    copies_ = transposed(arrived);
    gather_ = std::move(gathered);
    dispatch_ = std::move(dispatched);
  }

 private:
  struct SentRows {
    ValueId rows;
    ValueId scales;
  };

  DType dtype_of(ValueId value) const { return graph_.value(value).dtype; }
  ValueId copies_operand(int at) const { return copies_.operands[static_cast<size_t>(at)]; }
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
  Node quantize_gathered(const SentRows& sent) const {
    const auto moved = attributes_of<MovedRowsAttributes>(gather_.spec);
    std::vector<Operand> operands;
    for (size_t i = 0; i + 1 < gather_.operands.size(); ++i) {
      operands.push_back({gather_.operands[i]});
    }
    operands.push_back({sent.rows, Access::kWrite});
    operands.push_back({sent.scales, Access::kWrite});
    add_tally(operands);
    Node node = node_like(
        gather_, kQuantizeGatheredOp,
        to_attributes(QuantizeGatheredAttributes{.dropped = moved.dropped, .watch = {watches()}}),
        operands);
    node.site = copies_.site;
    return node;
  }

  Node dispatch(const SentRows& sent, const SentRows& arrived) const {
    auto attributes = attributes_of<ExpertExchangeAttributes>(dispatch_.spec);
    attributes.scales = {true};
    const ExpertExchangeOperands at(dispatch_.spec);
    std::vector<Operand> operands{{sent.rows}};
    for (int i = 1; i < static_cast<int>(dispatch_.operands.size()); ++i) {
      const auto place = static_cast<size_t>(i);
      if (i == at.offsets_of_all) {
        operands.push_back({sent.scales});
      }
      operands.push_back({i == at.y ? arrived.rows : dispatch_.operands[place],
                          dispatch_.spec.operands[place].access});
      if (i == std::max(at.y, at.y_weights)) {
        operands.push_back({arrived.scales, Access::kWrite});
      }
    }
    return node_like(dispatch_, kDispatchRowsOp, to_attributes(attributes), operands);
  }

  Node transposed(const SentRows& arrived) const {
    const bool has_column = copies_at_.column >= 0;
    std::vector<Operand> operands{{arrived.rows},
                                  {arrived.scales},
                                  {copies_.operands[1]},
                                  {copies_operand(copies_at_.row + 1), Access::kWrite}};
    if (has_column) {
      operands.push_back({copies_operand(copies_at_.column), Access::kWrite});
      operands.push_back({copies_operand(copies_at_.column + 1), Access::kWrite});
      add_tally(operands);
    }
    return node_like(copies_, kTransposeGroupedOp,
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
  Node& gather_;
  Node& dispatch_;
  Node& copies_;
  QuantizeGroupedOperands copies_at_;
};

void rewrite(StageGraph& graph, std::vector<Node>& nodes) {
  const Uses uses(graph, nodes);
  const auto maker = [&](ValueId value, const auto& is_kind) -> Node* {
    const size_t found = uses.maker_for_one(value);
    return found != kNone && is_kind(nodes[found].spec) ? &nodes[found] : nullptr;
  };
  for (Node& node : nodes) {
    if (node.spec.op != kQuantizeGroupedOp.name) {
      continue;
    }
    Node* const dispatch = maker(node.operands[0], [](const OpSpec& spec) {
      return communicates_as(spec, CommOp::kDispatchRows);
    });
    Node* const gather =
        dispatch == nullptr ? nullptr : maker(dispatch->operands[0], [](const OpSpec& spec) {
          return spec.op == kGatherRowsOp.name;
        });
    if (gather != nullptr) {
      ExchangeNodes(graph, *gather, *dispatch, node).rewrite();
    }
  }
}

}  // namespace

void dispatch_copies(StageGraph& graph) {
  rewrite(graph, graph.forward);
  rewrite(graph, graph.backward);
}

}  // namespace braid
