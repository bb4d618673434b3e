#include "ops/row_blocks.h"

#include "ops/activation.h"
#include "ops/attributes.h"
#include "ops/expert_rows.h"
#include "ops/forward_graph.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr DType kI32 = DType::kI32;
constexpr DType kU8 = DType::kU8;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

/// Of 8 rows of 6 elements between 2 ranks with 3 experts each, in blocks of 5 rows: 64 bytes of
/// rows, and 32 of weights.
RowBlocksAttributes attributes(bool has_weights, bool held) {
  return {.member = 1,
          .experts = 6,
          .rows = 8,
          .block_rows = 5,
          .has_weights = has_weights,
          .held = held};
}
OpSpec pack_spec() {
  return {"rows_to_blocks",
          to_attributes(attributes(true, false)),
          {read(kBF16, {8, 6}), read(kF32, {8}), read(kI32, {14}), write(kU8, {2 * 96})}};
}
OpSpec unpack_spec() {
  return {"blocks_to_rows",
          to_attributes(attributes(true, true)),
          {read(kU8, {2 * 96}), read(kI32, {14}), write(kBF16, {10, 6}), write(kF32, {10}),
           write(kI32, {4})}};
}
OpSpec back_spec() {
  return {"blocks_to_rows",
          to_attributes(attributes(false, false)),
          {read(kU8, {2 * 64}), read(kI32, {14}), write(kBF16, {8, 6})}};
}

TEST(RowBlockLayout, HasPartsAtMultiplesOf16Bytes) {
  const RowBlockLayout layout(12, 4, 5);
  EXPECT_EQ(layout.weights_at, 64);
  EXPECT_EQ(layout.bytes, 96);
  EXPECT_EQ(RowBlockLayout(12, 0, 5).bytes, 64);
  EXPECT_EQ(RowBlockLayout(16, 4, 4).bytes, 80);
}

TEST(RowBlocksCost, IsThatOfTheRowsThatMove) {
  const double owned = 8 * (2 * 6 + 4);
  const double offsets = 14 * 4;
  expect_cost(pack_spec(), {.bytes_read = owned + offsets, .bytes_written = owned});
  const double held = 10 * (2 * 6 + 4);
  expect_cost(unpack_spec(), {.bytes_read = held + offsets, .bytes_written = held});
  auto twice = attributes(false, false);
  twice.copies = 2;
  OpSpec back = back_spec();
  back.attributes = to_attributes(twice);
  expect_cost(back, {.bytes_read = 2 * 96 + offsets, .bytes_written = 96});
}

TEST(RowBlocksCheck, RefusesSizesThatContradictEachOther) {
  EXPECT_NO_THROW(check_spec(pack_spec()));
  EXPECT_NO_THROW(check_spec(unpack_spec()));
  EXPECT_NO_THROW(check_spec(back_spec()));
  expect_refused(with_operand(pack_spec(), 0, read(kBF16, {8, 7})), "operand blocks");
  expect_refused(with_operand(pack_spec(), 1, read(kF32, {9})), "operand weights");
  expect_refused(with_operand(pack_spec(), 2, read(kI32, {13})), "E + 1 of each member");
  expect_refused(with_operand(pack_spec(), 2, read(kI32, {7 * 5})), "equal numbers of experts");
  expect_refused(with_operand(unpack_spec(), 0, read(kU8, {96})), "a block of each member");
  expect_refused(with_operand(unpack_spec(), 2, write(kBF16, {11, 6})), "those of all its blocks");
  expect_refused(with_operand(unpack_spec(), 4, write(kI32, {7})), "operand offsets");
  expect_refused(with_operand(back_spec(), 2, write(kBF16, {7, 6})), "those of a member");
}

TEST(RowBlocksCheck, OnlyRowsOfExpertsWithWeightsAreCounted) {
  auto watching = attributes(true, true);
  watching.watch = {true};
  OpSpec unpack = unpack_spec();
  unpack.attributes = to_attributes(watching);
  expect_refused(unpack, "operand 5 (tally) is missing");
  unpack.operands.push_back(tally_spec(RoomTally::kSize));
  EXPECT_NO_THROW(check_spec(unpack));
  EXPECT_EQ(tally_kind(unpack), TallyKind::kRowRoom);
  EXPECT_EQ(without_tally(unpack), unpack_spec());
  watching.held = false;
  OpSpec back = back_spec();
  back.attributes = to_attributes(watching);
  expect_refused(back, "are not counted");
  OpSpec pack = pack_spec();
  pack.attributes = to_attributes(watching);
  expect_refused(pack, "only blocks_to_rows counts rows");
}

TEST(RowBlocks, FindTheOperandsOfEachForm) {
  const RowBlocks pack(pack_spec());
  EXPECT_TRUE(pack.packs);
  EXPECT_EQ((std::vector<size_t>{pack.rows, pack.weights, pack.offsets_of_all, pack.blocks}),
            (std::vector<size_t>{0, 1, 2, 3}));
  EXPECT_EQ(pack.row_bytes, 12);
  EXPECT_EQ(pack.weight_bytes, 4);
  const RowBlocks unpack(unpack_spec());
  EXPECT_EQ((std::vector<size_t>{unpack.blocks, unpack.offsets_of_all, unpack.rows, unpack.weights,
                                 unpack.offsets, unpack.tally}),
            (std::vector<size_t>{0, 1, 2, 3, 4, 0}));
  EXPECT_EQ(unpack.members, 2);
  EXPECT_EQ(unpack.local_experts, 3);
  EXPECT_EQ(RowBlocks(back_spec()).offsets, 0u);
}

TEST(RowBlocksBackward, IsTheOtherOpOnTheOtherSideOfTheExchange) {
  Forward forward(kF32);
  GraphBuilder& b = forward.builder();
  const ExpertGroup group{.name = "expert.exchange",
                          .num_ranks = 2,
                          .experts = 6,
                          .copies = 1,
                          .max_rows = 20,
                          .block_rows = 10,
                          .member = 1};
  const ValueId offsets =
      b.named_value({.name = "offsets", .dtype = kI32, .shape = {14}, .kind = ValueKind::kInput});
  const DispatchedRows rows = dispatch_by_blocks(b,
                                                 {.x = forward.activation("x", {kRows, 4}),
                                                  .weights = forward.activation("w", {kRows}),
                                                  .offsets_of_all = offsets},
                                                 group, std::nullopt, "dispatched");
  const ValueId y = gelu(b, rows.x, "act");
  const ValueId weighted = routed_swiglu(b, y, rows.weights, rows.offsets, "weighted");
  forward.loss_of(combine_by_blocks(b, weighted, offsets, kRows, group, "combined"));
  const std::vector<std::string> backward = backward_of(forward.differentiated());
  const auto contains = [&](const std::string& node) {
    EXPECT_THAT(backward, testing::Contains(node));
  };
  contains("rows_to_blocks(combined.grad, offsets -> combined.exchanged.grad)");
  contains("all_to_all(combined.exchanged.grad -> combined.blocks.grad)");
  contains("blocks_to_rows(combined.blocks.grad, offsets -> weighted.grad)");
  contains(
      "rows_to_blocks(dispatched.grad, dispatched.weights.grad, offsets -> "
      "dispatched.exchanged.grad)");
  contains("all_to_all(dispatched.exchanged.grad -> dispatched.blocks.grad)");
  EXPECT_EQ(backward.back(), "blocks_to_rows(dispatched.blocks.grad, offsets -> x.grad, w.grad)");
}

}  // namespace
}  // namespace braid
