#include "ops/expert_rows.h"

#include <algorithm>
#include <set>

#include "ops/drop_rows.h"
#include "ops/forward_graph.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr DType kI32 = DType::kI32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

/// 4 tokens with 2 experts each, of 3; rows of 6 elements.
OpSpec sort_spec() {
  return {"sort_rows",
          {},
          {read(kI32, {4, 2}), write(kI32, {4, 2}), write(kI32, {8}), write(kI32, {4}),
           write(kF32, {3})}};
}
OpSpec gather_spec() {
  return {"gather_rows",
          {},
          {read(kBF16, {4, 6}), read(kI32, {8}), read(kI32, {4, 2}), write(kBF16, {8, 6})}};
}
OpSpec sum_spec() {
  return {"sum_rows",
          {},
          {read(kBF16, {8, 6}), read(kI32, {4, 2}), read(kI32, {8}), write(kBF16, {4, 6})}};
}
OpSpec swiglu_spec() {
  return {"routed_swiglu",
          {},
          {read(kBF16, {8, 6}), read(kF32, {8}), read(kI32, {4}), write(kBF16, {8, 3})}};
}
OpSpec relu2_spec() {
  return {"routed_relu2",
          {},
          {read(kBF16, {8, 3}), read(kF32, {8}), read(kI32, {4}), write(kBF16, {8, 3})}};
}

TEST(ExpertRowsCost, ReadsOneMapAndEachRowOnce) {
  expect_cost(gather_spec(), {.bytes_read = 2 * 24 + 4 * 8, .bytes_written = 2 * 48});
  expect_cost(sum_spec(), {.flops = 48, .bytes_read = 2 * 48 + 4 * 8, .bytes_written = 2 * 24});
}

TEST(ExpertRowsCheck, RefusesSizesThatContradictEachOther) {
  expect_refused(with_operand(sort_spec(), 4, write(kF32, {4})), "operand counts");
  expect_refused(with_operand(sort_spec(), 3, write(kI32, {1})), "of at least one expert");
  expect_refused(with_operand(sort_spec(), 0, read(kF32, {4, 2})), "indices must be i32");
  expect_refused(with_operand(gather_spec(), 2, read(kI32, {2, 4})), "row_of must be [T,K]");
  expect_refused(with_operand(gather_spec(), 1, read(kI32, {9})), "row_of must be [T,K]");
  expect_refused(with_operand(sum_spec(), 1, read(kI32, {3, 2})), "row_of must be [T,K]");
  OpSpec pairs{"permute_elems",
               to_attributes(MovedRowsAttributes{.dropped = {true}}),
               {read(kF32, {4, 2}), read(kI32, {4, 2}), read(kI32, {4, 2}), read(kI32, {4}),
                write(kF32, {4, 2})}};
  expect_refused(pairs, "either x or y must be of rows");
  expect_refused(with_operand(swiglu_spec(), 1, read(kBF16, {8})), "weights");
  expect_refused(with_operand(swiglu_spec(), 2, read(kI32, {1})), "of at least one expert");
  expect_refused(with_operand(swiglu_spec(), 0, read(kBF16, {8, 7})), "pairs of gate and up");
  expect_refused(with_operand(relu2_spec(), 3, write(kBF16, {8, 2})), "operand y");
  expect_refused(with_operand(relu2_spec(), 1, read(kF32, {7})), "weights");
}

OpSpec watched_spec() {
  OpSpec spec = sort_spec();
  spec.attributes = to_attributes(SortRowsAttributes{.watch = {true}});
  spec.operands.push_back(tally_spec(3));
  return spec;
}

TEST(ExpertRowsTally, HasANumberForEachExpertAndCostsNothing) {
  EXPECT_EQ(tally_kind(watched_spec()), TallyKind::kExpertRows);
  EXPECT_EQ(without_tally(watched_spec()), sort_spec());
  EXPECT_EQ(spec_cost(watched_spec()).bytes_written, spec_cost(sort_spec()).bytes_written);
  expect_refused(with_operand(watched_spec(), 5, tally_spec(4)), "operand tally");
  EXPECT_THROW(tally_kind(sort_spec()), InternalError);
}

TEST(ExpertRowsBackward, MovesRowsBackAndGivesTheWeightsTheirGradient) {
  Forward forward(kF32);
  GraphBuilder& b = forward.builder();
  const ValueId experts = b.named_value(
      {.name = "experts", .dtype = kI32, .shape = {kRows, 2}, .kind = ValueKind::kInput});
  const ExpertRows rows = sort_rows(b, experts, 3, std::nullopt, "rows");
  const ValueId weights = forward.activation("weights", {kRows, 2});
  ValueId y = gather_rows(b, forward.activation("x", {kRows, 4}), rows, "gathered");
  y = routed_swiglu(b, y, sort_weights(b, weights, rows, "sorted"), rows.offsets, "act");
  forward.loss_of(sum_rows(b, y, rows, "summed"));
  const std::vector<std::string> backward = backward_of(forward.differentiated());
  EXPECT_THAT(
      std::vector<std::string>(backward.end() - 4, backward.end()),
      testing::ElementsAre(
          "gather_rows(summed.grad, rows.pair_of, rows.row_of -> act.grad)",
          "routed_swiglu_backward(gathered, sorted, act.grad, rows.offsets -> gathered.grad, "
          "sorted.grad)",
          "permute_elems(sorted.grad, rows.row_of, rows.pair_of -> weights.grad)",
          "sum_rows(gathered.grad, rows.row_of, rows.pair_of -> x.grad)"));
}

// Gradients of dropped pairs are 0, whatever nobody wrote to their rows.
TEST(ExpertRowsBackward, LeavesDroppedRowsOut) {
  Forward forward(kF32);
  GraphBuilder& b = forward.builder();
  const ValueId experts = b.named_value(
      {.name = "experts", .dtype = kI32, .shape = {kRows, 2}, .kind = ValueKind::kInput});
  const ValueId weights = forward.activation("weights", {kRows, 2});
  const ExpertRows rows = drop_rows(b, weights, sort_rows(b, experts, 3, std::nullopt, "rows"),
                                    {.capacity = 2}, "kept");
  ValueId y = gather_rows(b, forward.activation("x", {kRows, 4}), rows, "gathered");
  y = routed_swiglu(b, y, sort_weights(b, weights, rows, "sorted"), rows.offsets, "act");
  forward.loss_of(sum_rows(b, y, rows, "summed"));
  const std::vector<std::string> backward = backward_of(forward.differentiated());
  EXPECT_THAT(
      std::vector<std::string>(backward.end() - 4, backward.end()),
      testing::ElementsAre(
          "gather_rows(summed.grad, kept.pair_of, kept.row_of, kept.offsets -> act.grad)",
          "routed_swiglu_backward(gathered, sorted, act.grad, kept.offsets -> gathered.grad, "
          "sorted.grad)",
          "permute_elems(sorted.grad, kept.row_of, kept.pair_of, kept.offsets -> weights.grad)",
          "sum_rows(gathered.grad, kept.row_of, kept.pair_of, kept.offsets -> x.grad)"));
}

TEST(ExpertRowsBackward, OfRelu2HasTheShapesOfItsInputs) {
  Forward forward(kF32);
  GraphBuilder& b = forward.builder();
  const ValueId offsets =
      b.named_value({.name = "offsets", .dtype = kI32, .shape = {4}, .kind = ValueKind::kInput});
  const ValueId x = forward.activation("x", {kRows, 4});
  const ValueId weights = forward.activation("weights", {kRows});
  forward.loss_of(routed_relu2(b, x, weights, offsets, "act"));
  EXPECT_EQ(backward_of(forward.differentiated()).back(),
            "routed_relu2_backward(x, weights, act.grad, offsets -> x.grad, weights.grad)");
}

TEST(ValidIntegers, OfExpertRows) {
  for (const int32_t expert : valid_integers(sort_spec(), 0)) {
    EXPECT_GE(expert, 0);
    EXPECT_LT(expert, 3);
  }
  const std::vector<int32_t> pair_of = valid_integers(gather_spec(), 1);
  const std::vector<int32_t> row_of = valid_integers(gather_spec(), 2);
  EXPECT_EQ(std::set<int32_t>(pair_of.begin(), pair_of.end()).size(), 8u);
  EXPECT_FALSE(std::ranges::is_sorted(pair_of));
  for (size_t row = 0; row < pair_of.size(); ++row) {
    EXPECT_EQ(row_of.at(static_cast<size_t>(pair_of[row])), static_cast<int32_t>(row));
  }
}

}  // namespace
}  // namespace braid
