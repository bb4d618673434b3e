#include "ops/grouped_linear.h"

#include "ops/forward_graph.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr DType kI32 = DType::kI32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

/// 9 rows, 2 experts with matrices [7,5].
OpSpec linear_spec() {
  return {"grouped_linear",
          {},
          {read(kBF16, {9, 5}), read(kBF16, {14, 5}), read(kI32, {3}), write(kBF16, {9, 7})}};
}
OpSpec dgrad_spec() {
  return {"grouped_linear_dgrad",
          {},
          {read(kBF16, {9, 7}), read(kBF16, {14, 5}), read(kI32, {3}), write(kBF16, {9, 5})}};
}
OpSpec wgrad_spec(bool accumulate) {
  OpSpec spec{"grouped_linear_wgrad",
              to_attributes(GroupedWgradAttributes{.accumulate = accumulate}),
              {read(kBF16, {9, 5}), read(kBF16, {9, 7}), read(kI32, {3}), write(kF32, {14, 5})}};
  spec.operands[3].access = accumulate_access(accumulate);
  return spec;
}

constexpr double kFlops = 2.0 * 9 * 7 * 5;

TEST(GroupedLinearCost, ReadsTheWeightsOfAllExpertsOnce) {
  expect_cost(linear_spec(),
              {.flops = kFlops, .bytes_read = 2 * (45 + 70) + 4 * 3, .bytes_written = 2 * 63});
  expect_cost(dgrad_spec(),
              {.flops = kFlops, .bytes_read = 2 * (63 + 70) + 4 * 3, .bytes_written = 2 * 45});
  expect_cost(wgrad_spec(false),
              {.flops = kFlops, .bytes_read = 2 * (45 + 63) + 4 * 3, .bytes_written = 4 * 70});
  expect_cost(
      wgrad_spec(true),
      {.flops = kFlops, .bytes_read = 2 * (45 + 63) + 4 * 3 + 4 * 70, .bytes_written = 4 * 70});
}

TEST(GroupedLinearCheck, WeightsMustBeThoseOfAllExperts) {
  expect_refused(with_operand(linear_spec(), 1, read(kBF16, {15, 5})), "multiple of E");
  expect_refused(with_operand(linear_spec(), 1, read(kBF16, {14, 6})), "w must be [E M,K]");
  expect_refused(with_operand(linear_spec(), 1, read(kF32, {14, 5})), "w must be [E M,K]");
  expect_refused(with_operand(linear_spec(), 2, read(kI32, {1})), "at least one expert");
  expect_refused(with_operand(linear_spec(), 2, read(kF32, {3})), "offsets must be i32");
  expect_refused(with_operand(dgrad_spec(), 1, read(kBF16, {16, 5})), "w must be [E M,K]");
  expect_refused(with_operand(wgrad_spec(true), 1, read(kBF16, {8, 7})), "must agree");
  expect_refused(with_operand(wgrad_spec(true), 2, read(kI32, {4})), "operand dw");
  expect_refused(with_attribute(wgrad_spec(true), "accumulate", false), "operand dw has access");
}

TEST(GroupedLinearShape, GroupsDivideTheRowsOrTheDepth) {
  const auto shape = [](const OpSpec& spec) { return find_op(spec.op).gemm_shape(spec); };
  EXPECT_EQ(shape(linear_spec()),
            (GemmShape{.rows = 9, .columns = 7, .depth = 5, .dtype = kBF16, .groups = 2}));
  EXPECT_EQ(shape(dgrad_spec()),
            (GemmShape{.rows = 9, .columns = 5, .depth = 7, .dtype = kBF16, .groups = 2}));
  EXPECT_EQ(shape(wgrad_spec(true)), (GemmShape{.rows = 7,
                                                .columns = 5,
                                                .depth = 9,
                                                .dtype = kBF16,
                                                .groups = 2,
                                                .grouped = GroupedSize::kDepth}));
}

// Passes that find products of one matrix must not take these for such.
TEST(GroupedLinearRole, IsNoProductOfAMatrix) {
  for (const OpSpec& spec : {linear_spec(), dgrad_spec(), wgrad_spec(true)}) {
    EXPECT_EQ(product_part(spec), std::nullopt) << spec.op;
    EXPECT_TRUE(is_product_or_attention(spec)) << spec.op;
  }
}

TEST(GroupedLinearBackward, AddsDgradAndWgrad) {
  Forward forward(kF32);
  const ValueId offsets = forward.builder().named_value(
      {.name = "offsets", .dtype = kI32, .shape = {3}, .kind = ValueKind::kInput});
  const ValueId w = forward.param("w", {2 * 6, 4});
  const ValueId x = forward.activation("x", {kRows, 4});
  forward.loss_of(grouped_linear(forward.builder(), x, w, offsets, "y"));
  const std::vector<std::string> backward = backward_of(forward.differentiated());
  EXPECT_THAT(std::vector<std::string>(backward.end() - 2, backward.end()),
              testing::ElementsAre("grouped_linear_dgrad(y.grad, w, offsets -> x.grad)",
                                   "grouped_linear_wgrad(x, y.grad, offsets -> +w.main_grad)"));
}

TEST(ValidIntegers, OfOffsetsDivideTheRowsEqually) {
  EXPECT_EQ(valid_integers(linear_spec(), 2), (std::vector<int32_t>{0, 4, 9}));
}

}  // namespace
}  // namespace braid
