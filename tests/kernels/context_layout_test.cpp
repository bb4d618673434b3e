#include "ops/context_layout.h"

#include <numeric>

#include "support/kernel_harness.h"

namespace braid {
namespace {

/// Runs x -> y on x = 0, 1, 2, ...
std::vector<double> run_on_numbers(const OpSpec& spec) {
  KernelCase kernel(spec);
  std::vector<double> numbers(static_cast<size_t>(kernel.num_elems(0)));
  std::iota(numbers.begin(), numbers.end(), 0.0);
  kernel.set(0, numbers);
  kernel.run(2);
  return kernel.values(1);
}

OpSpec mover(std::string op, std::vector<Attribute> attributes, Shape from, Shape to,
             DType dtype = DType::kF32) {
  return {std::move(op), std::move(attributes), {read(dtype, from), write(dtype, to)}};
}

TEST(PackKv, TakesTheLastColumns) {
  EXPECT_EQ(run_on_numbers(mover("pack_kv", {}, {2, 5}, {2, 2})),
            (std::vector<double>{3, 4, 8, 9}));
}

TEST(AssembleQkv, JoinsRowsAndRoundsOnce) {
  for (const DType dtype : kFloatDtypes) {
    KernelCase kernel(
        {"assemble_qkv",
         {},
         {read(wide(dtype), {3, 4}), read(wide(dtype), {3, 2}), write(dtype, {3, 6})}});
    kernel.run(2);
    const auto d_q = kernel.values(0);
    const auto d_kv = kernel.values(1);
    const auto d_qkv = kernel.values(2);
    for (size_t row = 0; row < 3; ++row) {
      for (size_t i = 0; i < 6; ++i) {
        const double from = i < 4 ? d_q[row * 4 + i] : d_kv[row * 2 + i - 4];
        EXPECT_EQ(d_qkv[row * 6 + i], rounded_to(dtype, from));
      }
    }
  }
}

// Two sequences A and B of 8 tokens; rank 0 holds 0, 1, 6, 7 of both, rank 1 holds 2, 3, 4, 5.
TEST(ZigzagOrder, PutsGatheredRowsInOrderOfPosition) {
  const ZigzagOrderAttributes order{.ranks = 2, .sequence = 4};
  EXPECT_EQ(run_on_numbers(mover("zigzag_order", to_attributes(order), {16, 1}, {16, 1})),
            (std::vector<double>{0, 1, 8, 9, 10, 11, 2, 3, 4, 5, 12, 13, 14, 15, 6, 7}));
}

/// `back` undoes `there`.
void expect_inverse(const OpSpec& there, const OpSpec& back) {
  KernelCase first(there);
  first.run(2);
  KernelCase second(back);
  second.set(0, first.values(1));
  second.run(2);
  EXPECT_EQ(second.values(1), first.values(0)) << there.op;
  EXPECT_NE(first.values(1), first.values(0)) << there.op << " moves something";
}

TEST(ContextLayout, InversesUndo) {
  for (const DType dtype : kFloatDtypes) {
    ZigzagOrderAttributes order{.ranks = 3, .sequence = 10};
    const Shape rows{60, 33};
    const OpSpec ordered = mover("zigzag_order", to_attributes(order), rows, rows, dtype);
    order.inverse = true;
    expect_inverse(ordered, mover("zigzag_order", to_attributes(order), rows, rows, dtype));
    SplitHeadsAttributes heads{.ranks = 3, .heads = 6, .kv_heads = 3, .head_size = 5};
    const OpSpec split = mover("split_heads", to_attributes(heads), {7, 60}, {21, 20}, dtype);
    heads.inverse = true;
    expect_inverse(split, mover("split_heads", to_attributes(heads), {21, 20}, {7, 60}, dtype));
    SplitHeadsAttributes states{
        .ranks = 3, .heads = 6, .head_size = 2, .states = {.groups = 3, .state = 5}};
    const OpSpec by_state = mover("split_heads", to_attributes(states), {7, 60}, {21, 20}, dtype);
    states.inverse = true;
    expect_inverse(by_state, mover("split_heads", to_attributes(states), {21, 20}, {7, 60}, dtype));
    const auto swap = [&](int64_t outer, int64_t inner) {
      return mover("swap_blocks",
                   to_attributes(SwapBlocksAttributes{.outer = outer, .inner = inner}), rows, rows,
                   dtype);
    };
    expect_inverse(swap(3, 5), swap(5, 3));
  }
}

// Rows q0 q1 q2 q3 k0 k1 v0 v1 of heads of one element.
TEST(SplitHeads, GivesEachRankItsPartOfEachKind) {
  const SplitHeadsAttributes heads{.ranks = 2, .heads = 4, .kv_heads = 2, .head_size = 1};
  EXPECT_EQ(run_on_numbers(mover("split_heads", to_attributes(heads), {2, 8}, {4, 4})),
            (std::vector<double>{0, 1, 4, 6, 8, 9, 12, 14, 2, 3, 5, 7, 10, 11, 13, 15}));
}

// Rows z, x, B, C, dt of two heads of one element and two groups with states of two.
TEST(SplitHeads, GivesEachRankItsPartOfStates) {
  const SplitHeadsAttributes heads{
      .ranks = 2, .heads = 2, .head_size = 1, .states = {.groups = 2, .state = 2}};
  EXPECT_EQ(run_on_numbers(mover("split_heads", to_attributes(heads), {1, 14}, {2, 7})),
            (std::vector<double>{0, 2, 4, 5, 8, 9, 12, 1, 3, 6, 7, 10, 11, 13}));
}

TEST(SwapBlocks, TransposesBlocks) {
  const SwapBlocksAttributes swap{.outer = 2, .inner = 3};
  EXPECT_EQ(run_on_numbers(mover("swap_blocks", to_attributes(swap), {12, 1}, {12, 1})),
            (std::vector<double>{0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}));
}

}  // namespace
}  // namespace braid
