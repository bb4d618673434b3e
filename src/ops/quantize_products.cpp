#include "ops/quantize_products.h"

#include <fmt/core.h>
#include <fnmatch.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ops/attributes.h"
#include "ops/blocks.h"
#include "ops/delay_columns.h"
#include "ops/dispatch_copies.h"
#include "ops/expert_exchange.h"
#include "ops/fuse_copies.h"
#include "ops/grouped_linear.h"
#include "ops/linear.h"
#include "ops/operand_checker.h"
#include "ops/quantize.h"
#include "ops/quantize_grouped.h"
#include "ops/scaled_grouped_linear.h"

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
  const int64_t shared_rows = it.experts == 0 ? it.rows : 0;  // those of experts may be any number
  for (const auto& [name, size] : {std::pair{"tokens", shared_rows}, std::pair{"inputs", it.depth},
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
    find_sites();
    gathers_ = gathers_of_products();
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

  void find_sites() {
    for (const Node& node : graph_.forward) {
      const bool is_linear = node.spec.op == kLinearOp.name && (node.layer >= 0 || recipe_.head);
      const bool is_grouped = node.spec.op == kGroupedLinearOp.name && recipe_.experts;
      if (is_linear || is_grouped) {
        const std::vector<OperandSpec>& operands = node.spec.operands;
        const int64_t experts = is_grouped ? operands[2].shape[0] - 1 : 0;
        ProductSite site{.site = node.site,
                         .rows = operands[0].shape[0],
                         .features = operands[1].shape[0] / std::max<int64_t>(1, experts),
                         .depth = operands[0].shape[1],
                         .experts = experts,
                         .sent = sent_factor(node),
                         .reason = {}};
        site.reason = reason_to_keep(site, recipe_);
        sites_.push_back(std::move(site));
      }
    }
  }

  /// x of a forward product that reads what dispatch_rows brings, dy of one whose result
  /// combine_rows sends back.
  SentFactor sent_factor(const Node& product) const {
    for (const Node& node : graph_.forward) {
      const bool dispatches = communicates_as(node.spec, CommOp::kDispatchRows);
      if (!dispatches && !communicates_as(node.spec, CommOp::kCombineRows)) {
        continue;
      }
      const auto y = static_cast<size_t>(ExpertExchangeOperands(node.spec).y);
      if (dispatches && node.operands[y] == product.operands[0]) {
        return SentFactor::kX;
      }
      if (!dispatches && node.operands[0] == product.operands.back()) {
        return SentFactor::kDy;
      }
    }
    return SentFactor::kNone;
  }

  /// The all-gathers, by their results, that become gathers of copies.
  std::unordered_map<ValueId, Node> gathers_of_products() const {
    std::unordered_map<ValueId, Node> gathers;
    if (!recipe_.gathers_copies || recipe_.block == 0) {
      return gathers;
    }
    const auto for_all_nodes = [&](const auto& visit) {
      std::ranges::for_each(graph_.forward, visit);
      std::ranges::for_each(graph_.backward, visit);
    };
    for_all_nodes([&](const Node& node) {
      if (communicates_as(node.spec, CommOp::kAllGather) && has_whole_blocks(node.spec)) {
        gathers.emplace(node.operands[1], node);
      }
    });
    for_all_nodes([&](const Node& node) {
      for (size_t i = 0; i < node.operands.size(); ++i) {
        if (node.spec.operands[i].access != Access::kWrite && !reads_copies(node, i)) {
          gathers.erase(node.operands[i]);
        }
      }
    });
    for (const auto& end : {graph_.stage_output, graph_.stage_input_grad}) {
      if (end) {
        gathers.erase(*end);
      }
    }
    return gathers;
  }

  bool has_whole_blocks(const OpSpec& gather) const {
    const Shape& part = gather.operands[0].shape;
    return part.rank() == 2 && part[0] % size_unit(recipe_) == 0;
  }

  /// Whether that operand of a node will be FP8 copies, without a bias gradient that needs all
  /// rows.
  bool reads_copies(const Node& node, size_t operand) const {
    const std::string& op = node.spec.op;
    const bool is_dy = operand == (op == kLinearWgradOp.name ? 1 : 0) && op != kLinearOp.name;
    const bool is_x = operand == 0 && !is_dy;
    const bool is_product =
        op == kLinearOp.name || op == kLinearDgradOp.name || op == kLinearWgradOp.name;
    return is_product && is_quantized_site(node.site) && (is_x || (is_dy && !bias_of(node)));
  }

  void add_forward(const Node& node) {
    if (is_gather_of_copies(node)) {
      return;
    }
    if (node.spec.op == kLinearOp.name && is_quantized_site(node.site)) {
      add_product(node);
    } else if (node.spec.op == kGroupedLinearOp.name && is_quantized_site(node.site)) {
      add_grouped_product(node);
    } else {
      nodes_.push_back(node);
    }
  }

  bool is_gather_of_copies(const Node& node) const {
    return communicates_as(node.spec, CommOp::kAllGather) && gathers_.contains(node.operands[1]);
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
    if (is_gather_of_copies(node)) {
      return;
    }
    if (node.spec.op == kLinearDgradOp.name && weights_.contains(node.operands[1])) {
      add_dgrad(node);
    } else if (node.spec.op == kLinearWgradOp.name && copies_.contains(node.operands[0]) &&
               is_quantized_site(node.site)) {
      add_wgrad(node);
    } else if (node.spec.op == kGroupedLinearDgradOp.name && is_quantized_site(node.site)) {
      add_grouped_dgrad(node);
    } else if (node.spec.op == kGroupedLinearWgradOp.name && is_quantized_site(node.site)) {
      add_grouped_wgrad(node);
    } else {
      nodes_.push_back(node);
    }
  }

  // Products of experts: the offsets are operand 2, behind both factors.

  void add_grouped_product(const Node& node) {
    const Copies x = grouped_copies_of(node, node.operands[0], recipe_.forward);
    const Copies& w = copies_of_weight(node, node.operands[1]);
    add(node, kScaledGroupedLinearOp,
        to_attributes(ScaledGroupedLinearAttributes{.sums = recipe_.sums}),
        std::vector<Operand>{{x.row},
                             {x.row_scales},
                             {w.row},
                             {w.row_scales},
                             {node.operands[2]},
                             {node.operands[3], Access::kWrite}});
  }

  void add_grouped_dgrad(const Node& node) {
    const Copies dy = grouped_copies_of(node, node.operands[0], recipe_.gradient);
    const Copies& w = weights_.at(node.operands[1]);
    add(node, kScaledGroupedLinearDgradOp,
        to_attributes(ScaledGroupedLinearAttributes{.sums = recipe_.sums}),
        std::vector<Operand>{{dy.row},
                             {dy.row_scales},
                             {w.column},
                             {w.column_scales},
                             {node.operands[2]},
                             {node.operands[3], Access::kWrite}});
  }

  void add_grouped_wgrad(const Node& node) {
    const auto attributes = attributes_of<GroupedWgradAttributes>(node.spec);
    const Copies x = grouped_copies_of(node, node.operands[0], recipe_.forward);
    const Copies dy = grouped_copies_of(node, node.operands[1], recipe_.gradient);
    add(node, kScaledGroupedLinearWgradOp,
        to_attributes(ScaledGroupedWgradAttributes{.rows = node.spec.operands[0].shape[0],
                                                   .accumulate = attributes.accumulate,
                                                   .sums = recipe_.sums}),
        std::vector<Operand>{{x.column},
                             {x.column_scales},
                             {dy.column},
                             {dy.column_scales},
                             {node.operands[2]},
                             {node.operands[3], accumulate_access(attributes.accumulate)}});
  }

  /// The copies of rows of experts, made here if they do not exist yet.
  Copies grouped_copies_of(const Node& at, ValueId value, DType format) {
    const auto [entry, is_new] = grouped_copies_.try_emplace(value);
    if (is_new) {
      const bool has_column = !graph_.backward.empty();
      const Shape x = graph_.value(value).shape;
      const int64_t experts = graph_.value(at.operands[2]).shape[0] - 1;
      entry->second = add_copies(value, ValueKind::kActivation, format, has_column,
                                 GroupedColumns::width(x[0], experts));
      std::vector<Operand> operands = copy_operands(value, entry->second, has_column);
      operands.insert(operands.begin() + 1, {at.operands[2]});
      add_tally(at, watched_factor({.op = std::string(kQuantizeGroupedOp.name)}, at.phase),
                operands);
      add(at, kQuantizeGroupedOp,
          to_attributes(QuantizeGroupedAttributes{.column = has_column, .watch = {recipe_.watch}}),
          operands, /*in_dgrad=*/true);
    }
    return entry->second;
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
    copies_of(node, node.operands[1], recipe_.gradient, bias_of(node));
    const Copies& dy = with_columns(node, node.operands[1]);
    const Copies& x = with_columns(node, node.operands[0]);
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

  /// The copies of an activation, made here if they do not exist yet. Columns of a gathered one
  /// come later (`with_columns`).
  const Copies& copies_of(const Node& at, ValueId value, DType format, std::optional<ValueId> db) {
    const auto found = copies_.find(value);
    if (found != copies_.end()) {
      return found->second;
    }
    const auto gather = gathers_.find(value);
    const Copies made = gather == gathers_.end() ? quantized(at, value, format, db)
                                                 : gathered_rows(at, gather->second, format);
    return copies_.emplace(value, made).first->second;
  }

  Copies quantized(const Node& at, ValueId value, DType format, std::optional<ValueId> db) {
    const bool has_column = !graph_.backward.empty();
    const Copies made =
        add_copies(value, ValueKind::kActivation, format, has_column, graph_.value(value).shape[0]);
    std::vector<Operand> operands = copy_operands(value, made, has_column);
    if (db) {
      operands.push_back({*db, Access::kReadWrite});
    }
    add_tally(at, watched_factor({.op = std::string(kQuantizeOp.name)}, at.phase), operands);
    add(at, kQuantizeOp,
        to_attributes(QuantizeAttributes{.block = recipe_.block,
                                         .column = has_column,
                                         .has_bias = db.has_value(),
                                         .watch = {recipe_.watch}}),
        operands, /*in_dgrad=*/true);
    return made;
  }

  /// Copies of this rank's part, and the rows of all parts. Scales of rows lie side by side.
  Copies gathered_rows(const Node& at, const Node& gather, DType format) {
    const Copies part = copies_of(at, gather.operands[0], format, std::nullopt);
    return {.row = gathered(gather, part.row),
            .row_scales = joined(at, gathered(gather, part.row_scales), num_parts(gather))};
  }

  /// The copies of an activation that has some, with columns of all parts. These lie side by side.
  const Copies& with_columns(const Node& at, ValueId value) {
    Copies& copies = copies_.at(value);
    if (!copies.column.valid()) {
      const Node& gather = gathers_.at(value);
      const Copies& part = copies_.at(gather.operands[0]);
      copies.column_scales = gathered(gather, part.column_scales);
      copies.column = joined(at, gathered(gather, part.column), num_parts(gather));
    }
    return copies;
  }

  ValueId add_value(std::string name, DType dtype, const Shape& shape,
                    ValueKind kind = ValueKind::kActivation) {
    graph_.values.push_back(
        {.name = std::move(name), .dtype = dtype, .shape = shape, .kind = kind});
    return ValueId(graph_.values.size() - 1);
  }

  /// The values that all ranks of a gather have for `part`, one below the other.
  ValueId gathered(const Node& gather, ValueId part) {
    const Value its = graph_.value(part);
    Shape shape = its.shape;
    shape[0] *= num_parts(gather);
    const ValueId all = add_value(its.name + ".all", its.dtype, shape);
    Node node = make_node(graph_, gather.spec.op, gather.spec.attributes,
                          std::vector<Operand>{{part}, {all, Access::kWrite}});
    node.phase = gather.phase;
    node.layer = gather.layer;
    node.site = fmt::format("{}.{}", gather.site, its.name.substr(its.name.rfind('.') + 1));
    nodes_.push_back(std::move(node));
    return all;
  }

  static int64_t num_parts(const Node& gather) {
    return gather.spec.operands[1].shape[0] / gather.spec.operands[0].shape[0];
  }

  /// Equal blocks of rows, one for each of the ranks, side by side.
  ValueId joined(const Node& at, ValueId blocks, int64_t ranks) {
    const Value its = graph_.value(blocks);
    const ValueId whole =
        add_value(its.name + ".joined", its.dtype, {its.shape[0] / ranks, its.shape[1] * ranks});
    add(at, kJoinBlocksOp, {}, std::vector<Operand>{{blocks}, {whole, Access::kWrite}});
    return whole;
  }

  const Copies& copies_of_weight(const Node& at, ValueId weight) {
    const auto [entry, is_new] = weights_.try_emplace(weight);
    if (is_new) {
      const bool has_column = !graph_.backward.empty();
      entry->second = add_copies(weight, ValueKind::kQuantizedParam, recipe_.forward, has_column,
                                 graph_.value(weight).shape[0]);
      std::vector<Operand> operands = copy_operands(weight, entry->second, has_column);
      add_tally(at, "w", operands);
      Node node =
          make_node(graph_, std::string(kQuantizeWeightOp.name),
                    to_attributes(QuantizeAttributes{.block = recipe_.block,
                                                     .square = recipe_.weight_scales().square,
                                                     .column = has_column,
                                                     .watch = {recipe_.watch}}),
                    operands);
      node.layer = at.layer;
      node.site = at.site;
      graph_.weights.push_back(std::move(node));
    }
    return entry->second;
  }

  /// `width`: of the copy by columns.
  Copies add_copies(ValueId of, ValueKind kind, DType format, bool has_column, int64_t width) {
    const Value source = graph_.value(of);
    const ScaleLayout scales = kind == ValueKind::kQuantizedParam
                                   ? recipe_.weight_scales()
                                   : ScaleLayout{.block = recipe_.block};
    const auto add_copy = [&](const char* suffix, DType dtype, const Shape& shape) {
      return add_value(fmt::format("{}.{}", source.name, suffix), dtype, shape, kind);
    };
    const Shape transposed{source.shape[1], width};
    Copies made;
    made.row = add_copy("row", format, source.shape);
    made.row_scales = add_copy("row_scales", scales.dtype(), scales.shape(source.shape));
    if (has_column) {
      made.column = add_copy("column", format, transposed);
      made.column_scales = add_copy("column_scales", scales.dtype(), scales.shape(transposed));
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

  /// One for all nodes that round this factor of the product, if the recipe wants it.
  void add_tally(const Node& at, std::string_view factor, std::vector<Operand>& operands) {
    if (recipe_.watch) {
      const auto [found, is_new] = tallies_.try_emplace(fmt::format("{}.{}", at.site, factor));
      if (is_new) {
        const OperandSpec spec = tally_spec(Fp8Tally::kSize);
        found->second = add_value(found->first, spec.dtype, spec.shape, ValueKind::kTally);
      }
      operands.push_back({found->second, Access::kReadWrite});
    }
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
  std::unordered_map<ValueId, Copies> grouped_copies_;  // of rows of experts
  std::unordered_map<ValueId, Node> gathers_;  // by result: what becomes a gather of copies
  std::unordered_map<ValueId, Copies> weights_;
  std::unordered_map<std::string, ValueId> tallies_;  // by site and factor
};

}  // namespace

std::vector<ProductSite> quantize_products(StageGraph& graph, const Fp8Recipe& recipe) {
  std::vector<ProductSite> sites = ProductQuantizer(graph, recipe).run();
  if (recipe.delays_columns) {
    delay_columns(graph);
  }
  if (recipe.dispatches_copies) {
    dispatch_copies(graph);
  }
  if (recipe.fuses_copies) {
    fuse_copies(graph);
  }
  return sites;
}

}  // namespace braid
