#include "ops/row_blocks.h"

#include <fmt/format.h>

#include <array>

#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/collectives.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

constexpr int64_t kPartAlignment = 16;

int64_t aligned(int64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

int64_t bytes_per_row(const OperandSpec& rows) {
  const int64_t all = rows.shape.num_elems() * static_cast<int64_t>(dtype_bytes(rows.dtype));
  return rows.shape.rank() == 0 || rows.shape[0] == 0 ? all : all / rows.shape[0];
}

RowBlocksAttributes checked_attributes(const OpSpec& spec, const OperandChecker& operands) {
  const auto attributes = attributes_of<RowBlocksAttributes>(spec);
  operands.require(attributes.member >= 0, "member must be a place in the group");
  operands.require(attributes.experts > 0 && attributes.copies > 0,
                   "experts and copies must be at least 1");
  operands.require(attributes.rows > 0 && attributes.block_rows > 0,
                   "rows and block_rows must be at least 1");
  return attributes;
}

/// Returns the number of members.
int64_t next_offsets_of_all(OperandChecker& operands, const RowBlocksAttributes& attributes) {
  const OperandSpec& offsets = operands.next("offsets_of_all", Access::kRead, 1);
  const int64_t of_member = attributes.experts + 1;
  operands.require(
      offsets.dtype == DType::kI32 && offsets.shape[0] > 0 && offsets.shape[0] % of_member == 0,
      "offsets_of_all must be i32, E + 1 of each member");
  const int64_t members = offsets.shape[0] / of_member;
  operands.require(
      members % attributes.copies == 0 && attributes.experts * attributes.copies % members == 0,
      "members must hold equal numbers of experts");
  return members;
}

/// Of experts that a member holds there may be fewer rows than its blocks have: a spec that is
/// priced has those of a load (ops/routed_rows.h).
void check_rows(const OperandChecker& operands, const RowBlocksAttributes& attributes,
                const OperandSpec& rows, int64_t members) {
  operands.require(attributes.held
                       ? rows.shape[0] > 0 && rows.shape[0] <= members * attributes.block_rows
                       : rows.shape[0] == attributes.rows,
                   "rows must be those of a member, or at most those of all its blocks");
}

void expect_blocks(OperandChecker& operands, const RowBlocksAttributes& attributes, Access access,
                   const OperandSpec& rows, int64_t members) {
  const int64_t weight_bytes =
      attributes.has_weights ? static_cast<int64_t>(dtype_bytes(accumulator_dtype(rows.dtype))) : 0;
  const RowBlockLayout layout(bytes_per_row(rows), weight_bytes, attributes.block_rows);
  operands.expect("blocks", access, DType::kU8, {members * layout.bytes});
}

void check_rows_to_blocks(const OpSpec& spec) {
  OperandChecker operands(spec);
  const auto attributes = checked_attributes(spec, operands);
  operands.require(!attributes.watch.watch, "only blocks_to_rows counts rows");
  const OperandSpec& x = operands.next_floating("x", Access::kRead, 2);
  if (attributes.has_weights) {
    operands.expect("weights", Access::kRead, accumulator_dtype(x.dtype), {x.shape[0]});
  }
  const int64_t members = next_offsets_of_all(operands, attributes);
  check_rows(operands, attributes, x, members);
  expect_blocks(operands, attributes, Access::kWrite, x, members);
  operands.done();
}

void check_blocks_to_rows(const OpSpec& spec) {
  OperandChecker operands(spec);
  const auto attributes = checked_attributes(spec, operands);
  operands.require(!attributes.watch.watch || (attributes.has_weights && attributes.held),
                   "rows without weights, or of a member, are not counted");
  const OperandSpec& blocks = operands.next("blocks", Access::kRead, 1);
  const int64_t members = next_offsets_of_all(operands, attributes);
  const OperandSpec& y = operands.next_floating("y", Access::kWrite, 2);
  check_rows(operands, attributes, y, members);
  const RowBlocks it(spec);
  operands.require(blocks.dtype == DType::kU8 && blocks.shape[0] == members * it.layout().bytes,
                   "blocks must be u8, a block of each member");
  if (attributes.has_weights) {
    operands.expect("y_weights", Access::kWrite, accumulator_dtype(y.dtype), {y.shape[0]});
  }
  if (attributes.has_weights && attributes.held) {
    operands.expect("offsets", Access::kWrite, DType::kI32, {it.local_experts + 1});
  }
  if (attributes.watch.watch) {
    const OperandSpec tally = tally_spec(RoomTally::kSize);
    operands.expect("tally", tally.access, tally.dtype, tally.shape);
  }
  operands.done();
}

/// Each row that comes or goes is read and written once; what of the blocks has no row is not
/// touched. A member's own rows go to, and come from, all copies of their experts.
OpCost blocks_cost(const OpSpec& spec) {
  const RowBlocks it(spec);
  double bytes = size_bytes(spec.operands[it.rows]);
  if (it.attributes.has_weights) {
    bytes += size_bytes(spec.operands[it.weights]);
  }
  const double in_blocks =
      bytes * (it.attributes.held ? 1.0 : static_cast<double>(it.attributes.copies));
  const double offsets = size_bytes(spec.operands[it.offsets_of_all]);
  return it.packs ? OpCost{.bytes_read = bytes + offsets, .bytes_written = in_blocks}
                  : OpCost{.bytes_read = in_blocks + offsets, .bytes_written = bytes};
}

IntegerNeed offsets_of_all_needs(const OpSpec& spec, size_t /*operand*/) {
  const auto attributes = attributes_of<RowBlocksAttributes>(spec);
  return {
      .rule = IntegerRule::kOffsetsOfAll, .limit = attributes.rows, .run = attributes.experts + 1};
}

/// Rows and weights were sent together, and their gradients come back together.
void rows_to_blocks_backward(BackwardBuilder& builder, const Node& node) {
  const RowBlocks it(node.spec);
  const std::optional<ValueId> d_blocks = builder.grad_of(node.operands[it.blocks]);
  if (!d_blocks) {
    return;
  }
  const ValueId x = node.operands[it.rows];
  const ValueId dx = builder.new_grad(x);
  std::vector<Operand> operands = {{*d_blocks}, {node.operands[it.offsets_of_all]}};
  operands.push_back({dx, Access::kWrite});
  if (it.attributes.has_weights) {
    check(!it.attributes.held, "op rows_to_blocks at {}: it is a backward", node.site);
    operands.push_back({builder.new_grad(node.operands[it.weights]), Access::kWrite});
  }
  builder.add_node(node, "blocks_to_rows", node.spec.attributes, operands, Phase::kDgrad);
  builder.add_grad(node, x, dx);
  if (it.attributes.has_weights) {
    builder.add_grad(node, node.operands[it.weights], operands.back().value);
  }
}

void blocks_to_rows_backward(BackwardBuilder& builder, const Node& node) {
  const RowBlocks it(node.spec);
  const std::optional<ValueId> dy = builder.grad_of(node.operands[it.rows]);
  const std::optional<ValueId> d_weights =
      it.attributes.has_weights ? builder.grad_of(node.operands[it.weights]) : std::nullopt;
  check(dy.has_value() == d_weights.has_value() || !it.attributes.has_weights,
        "op blocks_to_rows at {}: one of rows and weights has no gradient", node.site);
  if (!dy) {
    return;
  }
  const ValueId blocks = node.operands[it.blocks];
  const ValueId d_blocks = builder.new_grad(blocks);
  std::vector<Operand> operands = {{*dy}};
  if (d_weights) {
    operands.push_back({*d_weights});
  }
  operands.push_back({node.operands[it.offsets_of_all]});
  operands.push_back({d_blocks, Access::kWrite});
  builder.add_node(node, "rows_to_blocks", without_tally(node.spec).attributes, operands,
                   Phase::kDgrad);
  builder.add_grad(node, blocks, d_blocks);
}

RowBlocksAttributes attributes_of_group(const ExpertGroup& group, int64_t num_rows) {
  return {.member = group.member,
          .experts = group.experts,
          .copies = group.copies,
          .rows = num_rows,
          .block_rows = group.block_rows,
          .drops = group.drops};
}

/// The blocks of all members for this one, by those of this one.
ValueId exchanged(GraphBuilder& builder, ValueId blocks, const ExpertGroup& group,
                  std::string_view site) {
  return all_to_all(builder, blocks, group.name, group.num_ranks,
                    fmt::format("{}.exchanged", site));
}

ValueId add_blocks(GraphBuilder& builder, const Value& rows, const ExpertGroup& group,
                   bool has_weights, std::string_view site) {
  const int64_t row_bytes = bytes_per_row({.dtype = rows.dtype, .shape = rows.shape});
  const auto weight_bytes = static_cast<int64_t>(dtype_bytes(accumulator_dtype(rows.dtype)));
  const RowBlockLayout layout(row_bytes, has_weights ? weight_bytes : 0, group.block_rows);
  return builder.add_activation(fmt::format("{}.blocks", site), DType::kU8,
                                {group.num_ranks * layout.bytes});
}

}  // namespace

const OpDefinition kRowsToBlocksOp{
    .name = "rows_to_blocks",
    .summary = "Puts the rows for each rank of a group into a block of fixed size.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_rows_to_blocks,
    .cost = blocks_cost,
    .backward = rows_to_blocks_backward,
    .split = kNeverSplit,
    .dual = "blocks_to_rows",
    .part_begin = "member",
    .integers = offsets_of_all_needs,
};

const OpDefinition kBlocksToRowsOp{
    .name = "blocks_to_rows",
    .summary = "Takes the rows out of the blocks that the ranks of a group sent.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_blocks_to_rows,
    .cost = blocks_cost,
    .backward = blocks_to_rows_backward,
    .split = kNeverSplit,
    .dual = "rows_to_blocks",
    .part_begin = "member",
    .integers = offsets_of_all_needs,
    .tally = TallyKind::kRowRoom,
};

RowBlockLayout::RowBlockLayout(int64_t row_bytes, int64_t weight_bytes, int64_t block_rows)
    : weights_at(aligned(block_rows * row_bytes)),
      bytes(weights_at + aligned(block_rows * weight_bytes)) {}

RowBlocks::RowBlocks(const OpSpec& spec)
    : attributes(attributes_of<RowBlocksAttributes>(spec)),
      packs(spec.op == kRowsToBlocksOp.name),
      rows(packs ? 0 : 2) {
  const size_t behind_rows = rows + (attributes.has_weights ? 2 : 1);
  weights = rows + 1;
  offsets_of_all = packs ? behind_rows : 1;
  blocks = packs ? behind_rows + 1 : 0;
  offsets = !packs && attributes.has_weights && attributes.held ? behind_rows : 0;
  tally = attributes.watch.watch ? offsets + 1 : 0;
  members = spec.operands.at(offsets_of_all).shape[0] / (attributes.experts + 1);
  local_experts = attributes.experts * attributes.copies / members;
  const OperandSpec& it = spec.operands.at(rows);
  row_bytes = bytes_per_row(it);
  weight_bytes =
      attributes.has_weights ? static_cast<int64_t>(dtype_bytes(accumulator_dtype(it.dtype))) : 0;
}

bool is_of_row_blocks(const OpSpec& spec) {
  return spec.op == kRowsToBlocksOp.name || spec.op == kBlocksToRowsOp.name;
}

bool exchanges_row_blocks(const OpSpec& spec) {
  return communicates_as(spec, CommOp::kAllToAll) && spec.operands[0].dtype == DType::kU8;
}

DispatchedRows dispatch_by_blocks(GraphBuilder& builder, const RowsToDispatch& rows,
                                  const ExpertGroup& group, std::optional<ValueId> tally,
                                  std::string_view site) {
  const Value x = builder.value(rows.x);
  RowBlocksAttributes attributes = attributes_of_group(group, x.shape[0]);
  const ValueId blocks = add_blocks(builder, x, group, /*has_weights=*/true, site);
  builder.add_node("rows_to_blocks", to_attributes(attributes),
                   std::array{Operand{rows.x}, Operand{rows.weights}, Operand{rows.offsets_of_all},
                              Operand{blocks, Access::kWrite}},
                   fmt::format("{}.blocks", site));
  const ValueId of_all = exchanged(builder, blocks, group, site);
  const DispatchedRows result =
      add_dispatched_rows(builder, x, builder.value(rows.weights).dtype, group, site);
  attributes.held = true;
  attributes.watch = {tally.has_value()};
  std::vector<Operand> operands = {{of_all},
                                   {rows.offsets_of_all},
                                   {result.x, Access::kWrite},
                                   {result.weights, Access::kWrite},
                                   {result.offsets, Access::kWrite}};
  if (tally) {
    operands.push_back({*tally, Access::kReadWrite});
  }
  builder.add_node("blocks_to_rows", to_attributes(attributes), operands, site);
  return result;
}

ValueId combine_by_blocks(GraphBuilder& builder, ValueId x, ValueId offsets_of_all,
                          int64_t num_rows, const ExpertGroup& group, std::string_view site) {
  Value y = builder.value(x);
  RowBlocksAttributes attributes = attributes_of_group(group, num_rows);
  attributes.has_weights = false;
  attributes.held = true;
  const ValueId blocks = add_blocks(builder, y, group, /*has_weights=*/false, site);
  builder.add_node("rows_to_blocks", to_attributes(attributes),
                   std::array{Operand{x}, Operand{offsets_of_all}, Operand{blocks, Access::kWrite}},
                   fmt::format("{}.blocks", site));
  const ValueId of_all = exchanged(builder, blocks, group, site);
  y.shape[0] = num_rows;
  const ValueId result = builder.add_activation(site, y.dtype, y.shape);
  attributes.held = false;
  builder.add_node(
      "blocks_to_rows", to_attributes(attributes),
      std::array{Operand{of_all}, Operand{offsets_of_all}, Operand{result, Access::kWrite}}, site);
  return result;
}

}  // namespace braid
