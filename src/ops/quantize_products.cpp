#include "ops/quantize_products.h"

#include <fmt/core.h>
#include <fnmatch.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ops/attributes.h"
#include "ops/linear.h"
#include "ops/quantize.h"

namespace braid {
namespace {

/// Sizes that tensor cores and blocks need: whole blocks of tokens and features, so that no block
/// depends on how ranks share them. One scale for all needs only aligned rows.
int64_t size_unit(const Fp8Recipe& recipe) {
  return recipe.block == 0 ? 16 : 128;
}

std::string reason_to_keep(const ProductSite& it, const Fp8Recipe& recipe) {
  const auto is_kept = [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), it.site.c_str(), 0) == 0;
  };
  const auto pattern = std::ranges::find_if(recipe.keep, is_kept);
  if (pattern != recipe.keep.end()) {
    return fmt::format("kept by \"{}\"", *pattern);
  }
  const int64_t unit = size_unit(recipe);
  for (const auto& [name, size] : {std::pair{"tokens", it.rows}, std::pair{"inputs", it.depth},
                                   std::pair{"features", it.features}}) {
    if (size % unit != 0) {
      return fmt::format("{} {}: no multiple of {}", size, name, unit);
    }
  }
  return {};
}

/// FP8 copies of a value, with their scales.
struct Copies {
  ValueId row;
  ValueId row_scales;
  ValueId column;
  ValueId column_scales;
};

/// Rewrites one graph.
class ProductQuantizer {
 public:
  ProductQuantizer(StageGraph& graph, const Fp8Recipe& recipe) : graph_(graph), recipe_(recipe) {}

  std::vector<ProductSite> run() {
    rewrite(graph_.forward, &ProductQuantizer::add_forward);
    rewrite(graph_.backward, &ProductQuantizer::add_backward);
    return std::move(sites_);
  }

 private:
  void rewrite(std::vector<Node>& nodes, void (ProductQuantizer::*add_rewritten)(const Node&)) {
    nodes_.clear();
    for (const Node& node : nodes) {
      (this->*add_rewritten)(node);
    }
    nodes = std::exchange(nodes_, {});
  }

  void add_forward(const Node& node) {
    if (node.spec.op != kLinearOp.name || node.layer < 0) {
      nodes_.push_back(node);
      return;
    }
    const Shape& x = node.spec.operands[0].shape;
    const Shape& w = node.spec.operands[1].shape;
    ProductSite site{
        .site = node.site, .rows = x[0], .features = w[0], .depth = x[1], .reason = {}};
    site.reason = reason_to_keep(site, recipe_);
    if (site.reason.empty()) {
      add_product(node);
    } else {
      nodes_.push_back(node);
    }
    sites_.push_back(std::move(site));
  }

  void add_product(const Node& node) {
    const auto attributes = attributes_of<LinearAttributes>(node.spec);
    const Copies& x = copies_of(node, node.operands[0], recipe_.forward, {});
    const Copies& w = copies_of_weight(node, node.operands[1]);
    std::vector<Operand> operands{{x.row}, {x.row_scales}, {w.row}, {w.row_scales}};
    if (attributes.has_bias) {
      operands.push_back({node.operands[2]});
    }
    operands.push_back({node.operands.back(), Access::kWrite});
    add(node, kScaledLinearOp,
        to_attributes(ScaledLinearAttributes{.block = recipe_.block,
                                             .has_bias = attributes.has_bias,
                                             .adds_bias = attributes.adds_bias,
                                             .sums = recipe_.sums}),
        operands);
  }

  void add_backward(const Node& node) {
    if (node.spec.op == kLinearDgradOp.name && weights_.contains(node.operands[1])) {
      add_dgrad(node);
    } else if (node.spec.op == kLinearWgradOp.name && copies_.contains(node.operands[0]) &&
               is_quantized_site(node.site)) {
      add_wgrad(node);
    } else {
      nodes_.push_back(node);
    }
  }

  bool is_quantized_site(const std::string& site) const {
    return std::ranges::any_of(
        sites_, [&](const ProductSite& it) { return it.site == site && it.reason.empty(); });
  }

  void add_dgrad(const Node& node) {
    const Copies& dy = copies_of(node, node.operands[0], recipe_.gradient, bias_of(node));
    const Copies& w = weights_.at(node.operands[1]);
    add(node, kScaledLinearDgradOp,
        to_attributes(ScaledLinearDgradAttributes{.block = recipe_.block, .sums = recipe_.sums}),
        std::vector<Operand>{{dy.row},
                             {dy.row_scales},
                             {w.column},
                             {w.column_scales},
                             {node.operands[2], Access::kWrite}});
  }

  void add_wgrad(const Node& node) {
    const auto attributes = attributes_of<LinearWgradAttributes>(node.spec);
    const Copies& dy = copies_of(node, node.operands[1], recipe_.gradient, bias_of(node));
    const Copies& x = copies_.at(node.operands[0]);
    add(node, kScaledLinearWgradOp,
        to_attributes(ScaledLinearWgradAttributes{
            .block = recipe_.block, .accumulate = attributes.accumulate, .sums = recipe_.sums}),
        std::vector<Operand>{{x.column},
                             {x.column_scales},
                             {dy.column},
                             {dy.column_scales},
                             {node.operands[2], accumulate_access(attributes.accumulate)}});
  }

  /// The main grad of the bias of that place, if there is one.
  std::optional<ValueId> bias_of(const Node& node) const {
    for (const Node& it : graph_.backward) {
      if (it.site == node.site && it.spec.op == kLinearWgradOp.name && it.operands.size() == 4) {
        return it.operands[3];
      }
    }
    return std::nullopt;
  }

  /// The copies of an activation, made here if they do not exist yet.
  const Copies& copies_of(const Node& at, ValueId value, DType format, std::optional<ValueId> db) {
    const auto [entry, is_new] = copies_.try_emplace(value);
    if (is_new) {
      const bool has_column = !graph_.backward.empty();
      entry->second = add_copies(value, ValueKind::kActivation, format, has_column);
      std::vector<Operand> operands = copy_operands(value, entry->second, has_column);
      if (db) {
        operands.push_back({*db, Access::kReadWrite});
      }
      add(at, kQuantizeOp,
          to_attributes(QuantizeAttributes{
              .block = recipe_.block, .column = has_column, .has_bias = db.has_value()}),
          operands, /*in_dgrad=*/true);
    }
    return entry->second;
  }

  const Copies& copies_of_weight(const Node& at, ValueId weight) {
    const auto [entry, is_new] = weights_.try_emplace(weight);
    if (is_new) {
      const bool has_column = !graph_.backward.empty();
      entry->second = add_copies(weight, ValueKind::kQuantizedParam, recipe_.forward, has_column);
      Node node = make_node(
          graph_, std::string(kQuantizeWeightOp.name),
          to_attributes(QuantizeAttributes{
              .block = recipe_.block, .square = recipe_.block == 128, .column = has_column}),
          copy_operands(weight, entry->second, has_column));
      node.layer = at.layer;
      node.site = at.site;
      graph_.weights.push_back(std::move(node));
    }
    return entry->second;
  }

  Copies add_copies(ValueId of, ValueKind kind, DType format, bool has_column) {
    const Value source = graph_.value(of);
    const ScaleLayout scales{.block = recipe_.block,
                             .square = kind == ValueKind::kQuantizedParam && recipe_.block == 128};
    const auto add_value = [&](const char* suffix, DType dtype, const Shape& shape) {
      graph_.values.push_back({.name = fmt::format("{}.{}", source.name, suffix),
                               .dtype = dtype,
                               .shape = shape,
                               .kind = kind});
      return ValueId(graph_.values.size() - 1);
    };
    const Shape transposed{source.shape[1], source.shape[0]};
    Copies made;
    made.row = add_value("row", format, source.shape);
    made.row_scales = add_value("row_scales", scales.dtype(), scales.shape(source.shape));
    if (has_column) {
      made.column = add_value("column", format, transposed);
      made.column_scales = add_value("column_scales", scales.dtype(), scales.shape(transposed));
    }
    return made;
  }

  static std::vector<Operand> copy_operands(ValueId of, const Copies& copies, bool has_column) {
    std::vector<Operand> operands{
        {of}, {copies.row, Access::kWrite}, {copies.row_scales, Access::kWrite}};
    if (has_column) {
      operands.push_back({copies.column, Access::kWrite});
      operands.push_back({copies.column_scales, Access::kWrite});
    }
    return operands;
  }

  /// Appends a node at the place of `at`. Copies of a gradient lead to the gradient of the input,
  /// so they are not part of what may wait with weight gradients.
  void add(const Node& at, const OpDefinition& op, std::vector<Attribute> attributes,
           std::span<const Operand> operands, bool in_dgrad = false) {
    Node node = make_node(graph_, std::string(op.name), std::move(attributes), operands);
    node.phase = in_dgrad && at.phase == Phase::kWgrad ? Phase::kDgrad : at.phase;
    node.layer = at.layer;
    node.site = at.site;
    nodes_.push_back(std::move(node));
  }

  StageGraph& graph_;
  const Fp8Recipe& recipe_;
  std::vector<Node> nodes_;
  std::vector<ProductSite> sites_;
  std::unordered_map<ValueId, Copies> copies_;
  std::unordered_map<ValueId, Copies> weights_;
};

}  // namespace

std::vector<ProductSite> quantize_products(StageGraph& graph, const Fp8Recipe& recipe) {
  return ProductQuantizer(graph, recipe).run();
}

}  // namespace braid
