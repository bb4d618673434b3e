#include "ops/drop_rows.h"

#include <fmt/format.h>

#include <vector>

#include "ops/attributes.h"
#include "ops/expert_exchange.h"
#include "ops/expert_offsets.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_drop_rows(const OpSpec& spec) {
  const auto attributes = attributes_of<DropRowsAttributes>(spec);
  OperandChecker operands(spec);
  operands.require(attributes.capacity > 0 && attributes.capacity <= INT32_MAX,
                   "capacity must lie in [1, 2^31)");
  const OperandSpec& weights = operands.next_floating("weights", Access::kRead, 2);
  operands.require(weights.dtype == accumulator_dtype(weights.dtype), "weights must be f32 or f64");
  const Shape pairs = weights.shape;
  const Shape rows{pairs.num_elems()};
  operands.expect("row_of", Access::kRead, DType::kI32, pairs);
  operands.expect("pair_of", Access::kRead, DType::kI32, rows);
  const int64_t experts = next_offsets(operands);
  operands.expect("kept_row_of", Access::kWrite, DType::kI32, pairs);
  operands.expect("kept_pair_of", Access::kWrite, DType::kI32, rows);
  operands.expect("kept_offsets", Access::kWrite, DType::kI32, {experts + 1});
  if (attributes.watch.watch) {
    const OperandSpec tally = tally_spec(RoomTally::kSize);
    operands.expect("tally", tally.access, tally.dtype, tally.shape);
  }
  operands.done();
}

OpCost drop_rows_cost(const OpSpec& spec) {
  OpCost cost = elementwise_cost<2>(without_tally(spec));
  cost.bytes_read -= size_bytes(spec.operands[1]);  // row_of follows from pair_of
  return cost;
}

IntegerNeed map_needs(const OpSpec& spec, size_t operand) {
  return operand == 3
             ? IntegerNeed{.rule = IntegerRule::kOffsets, .limit = spec.operands[2].shape[0]}
             : IntegerNeed{.rule = IntegerRule::kPermutation};
}

}  // namespace

const OpDefinition kDropRowsOp{
    .name = "drop_rows",
    .summary = "The rows that experts of a limited capacity keep, and behind them the others.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kCopy,
    .check = check_drop_rows,
    .cost = drop_rows_cost,
    .recompute = Recompute::kNone,  // as the sort
    .split = kNeverSplit,
    .integers = map_needs,
    .tally = TallyKind::kRowRoom,
};

ExpertRows drop_rows(GraphBuilder& builder, ValueId weights, const ExpertRows& rows,
                     const DropOptions& options, std::string_view site) {
  const auto like = [&](std::string_view suffix, ValueId value) {
    return builder.add_activation(fmt::format("{}{}", site, suffix), DType::kI32,
                                  builder.value(value).shape);
  };
  const ExpertRows kept{.row_of = like(".row_of", rows.row_of),
                        .pair_of = like(".pair_of", rows.pair_of),
                        .offsets = like(".offsets", rows.offsets),
                        .counts = rows.counts,
                        .drops = true};
  std::vector<Operand> operands{{weights},
                                {rows.row_of},
                                {rows.pair_of},
                                {rows.offsets},
                                {kept.row_of, Access::kWrite},
                                {kept.pair_of, Access::kWrite},
                                {kept.offsets, Access::kWrite}};
  if (options.tally) {
    operands.push_back({*options.tally, Access::kReadWrite});
  }
  builder.add_node("drop_rows",
                   to_attributes(DropRowsAttributes{.capacity = options.capacity,
                                                    .by_position = options.by_position,
                                                    .watch = {options.tally.has_value()}}),
                   operands, site);
  return kept;
}

}  // namespace braid
