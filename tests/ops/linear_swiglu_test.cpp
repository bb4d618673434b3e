#include "ops/linear_swiglu.h"

#include "ops/linear.h"
#include "ops/specs.h"

namespace braid {
namespace {

// N = 3, K = 5, F = 7, M = 11, so that every wrong dimension shows.
const OpSpec kForward{"linear_swiglu",
                      {},
                      {read(DType::kBF16, {3, 5}), read(DType::kBF16, {14, 5}),
                       write(DType::kBF16, {3, 14}), write(DType::kBF16, {3, 7})}};
const OpSpec kBackward{"linear_dgrad_swiglu_backward",
                       {},
                       {read(DType::kBF16, {3, 11}), read(DType::kBF16, {11, 7}),
                        read(DType::kBF16, {3, 14}), write(DType::kBF16, {3, 14})}};

// R = 3 rows, E = 2 experts, K = 5, F = 7, M = 11.
const OpSpec kGroupedForward{
    "grouped_linear_swiglu",
    {},
    {read(DType::kBF16, {3, 5}), read(DType::kBF16, {28, 5}), read(DType::kI32, {3}),
     read(DType::kF32, {3}), write(DType::kBF16, {3, 14}), write(DType::kBF16, {3, 7})}};
const OpSpec kGroupedBackward{
    "grouped_linear_dgrad_swiglu_backward",
    {},
    {read(DType::kBF16, {3, 11}), read(DType::kBF16, {22, 7}), read(DType::kI32, {3}),
     read(DType::kBF16, {3, 14}), read(DType::kF32, {3}), write(DType::kBF16, {3, 14}),
     write(DType::kF32, {3})}};

TEST(GroupedLinearSwigluCheck, EachExpertHasAsManyGatesAsUps) {
  expect_refused(with_operand(kGroupedForward, 1, read(DType::kBF16, {26, 5})),
                 "w must be [E 2F,K]");
  expect_refused(with_operand(kGroupedForward, 1, read(DType::kBF16, {28, 6})),
                 "w must be [E 2F,K]");
  expect_refused(with_operand(kGroupedForward, 3, read(DType::kBF16, {3})), "expected f32 [3]");
  expect_refused(with_operand(kGroupedForward, 5, write(DType::kBF16, {3, 14})),
                 "expected bf16 [3,7]");
}

TEST(GroupedLinearSwigluCheck, TheBackwardReadsTheGradientBehindItsProduct) {
  expect_refused(with_operand(kGroupedBackward, 1, read(DType::kBF16, {11, 7})),
                 "w must be [E M,F]");
  expect_refused(with_operand(kGroupedBackward, 3, read(DType::kBF16, {3, 7})),
                 "expected bf16 [3,14]");
  expect_refused(with_operand(kGroupedBackward, 6, write(DType::kF32, {2})), "expected f32 [3]");
}

TEST(LinearSwigluCheck, TheWeightHasAsManyGatesAsUps) {
  expect_refused(with_operand(kForward, 1, read(DType::kBF16, {13, 5})), "w must be [2F,K]");
  expect_refused(with_operand(kForward, 1, read(DType::kBF16, {14, 6})), "w must be [2F,K]");
  expect_refused(with_operand(kForward, 1, read(DType::kF32, {14, 5})), "w must be [2F,K]");
  expect_refused(with_operand(kForward, 3, write(DType::kBF16, {3, 14})), "expected bf16 [3,7]");
}

TEST(LinearSwigluCheck, TheBackwardReadsTheGradientBehindItsProduct) {
  expect_refused(with_operand(kBackward, 1, read(DType::kBF16, {10, 7})), "w must be [M,F]");
  expect_refused(with_operand(kBackward, 1, read(DType::kF32, {11, 7})), "w must be [M,F]");
  expect_refused(with_operand(kBackward, 2, read(DType::kBF16, {3, 7})), "expected bf16 [3,14]");
}

// The product's arithmetic and the activation's; what one hands to the other is not read again.
TEST(LinearSwigluCost, IsThatOfBothWithoutWhatTheyHandOn) {
  expect_cost(kForward, {.flops = 2.0 * 3 * 5 * 14 + 3 * 42,
                         .bytes_read = 2 * (15 + 70),
                         .bytes_written = 2 * (42 + 21)});
  expect_cost(kBackward, {.flops = 2.0 * 3 * 11 * 7 + 6 * 42,
                          .bytes_read = 2 * (33 + 77 + 42),
                          .bytes_written = 2 * 42});
}

TEST(GroupedLinearSwigluCost, IsThatOfBothWithoutWhatTheyHandOn) {
  const OpCost forward = spec_cost(unfused(kGroupedForward).activation);
  expect_cost(kGroupedForward, {.flops = 2.0 * 3 * 5 * 14 + forward.flops,
                                .bytes_read = 2 * (15 + 140) + 4 * (3 + 3),
                                .bytes_written = 2 * (42 + 21)});
  const OpCost backward = spec_cost(unfused(kGroupedBackward).activation);
  expect_cost(kGroupedBackward, {.flops = 2.0 * 3 * 11 * 7 + backward.flops,
                                 .bytes_read = 2 * (33 + 154 + 42) + 4 * (3 + 3),
                                 .bytes_written = 2 * 42 + 4 * 3});
}

TEST(Unfused, AreTwoOpsThatFuseToTheSame) {
  for (const OpSpec& spec : {kForward, kBackward, kGroupedForward, kGroupedBackward}) {
    EXPECT_NO_THROW(check_spec(spec));
    EXPECT_TRUE(is_fused_product(spec));
    const ProductAndActivation parts = unfused(spec);
    EXPECT_NO_THROW(check_spec(parts.product));
    EXPECT_NO_THROW(check_spec(parts.activation));
    EXPECT_FALSE(is_fused_product(parts.product));
    EXPECT_EQ(fused(parts), spec);
  }
  EXPECT_EQ(unfused(kForward).product.op, "linear");
  EXPECT_EQ(unfused(kForward).activation.op, "swiglu");
  EXPECT_EQ(unfused(kBackward).product.op, "linear_dgrad");
  EXPECT_EQ(unfused(kBackward).activation.op, "swiglu_backward");
  EXPECT_EQ(unfused(kGroupedForward).product.op, "grouped_linear");
  EXPECT_EQ(unfused(kGroupedForward).activation.op, "routed_swiglu");
  EXPECT_EQ(unfused(kGroupedBackward).product.op, "grouped_linear_dgrad");
  EXPECT_EQ(unfused(kGroupedBackward).activation.op, "routed_swiglu_backward");
  EXPECT_THAT(message_of<InternalError>([] { unfused(unfused(kForward).product); }),
              testing::HasSubstr("op linear is not a product with an activation function"));
}

TEST(Fused, HasNeitherBiasNorSumNorOtherPairs) {
  const ProductAndActivation forward = unfused(kForward);
  const ProductAndActivation backward = unfused(kBackward);
  const OpSpec with_bias{"linear",
                         to_attributes(LinearAttributes{.has_bias = true}),
                         {forward.product.operands[0], forward.product.operands[1],
                          read(DType::kBF16, {14}), forward.product.operands[2]}};
  OpSpec adding = with_attribute(backward.product, "accumulate", true);
  adding.operands[2].access = Access::kReadWrite;
  EXPECT_NO_THROW(check_spec(with_bias));
  EXPECT_NO_THROW(check_spec(adding));
  EXPECT_EQ(fused({with_bias, forward.activation}), std::nullopt);
  EXPECT_EQ(fused({adding, backward.activation}), std::nullopt);
  EXPECT_EQ(fused({forward.product, backward.activation}), std::nullopt);
  EXPECT_EQ(fused({backward.product, forward.activation}), std::nullopt);
  EXPECT_EQ(fused({forward.activation, forward.product}), std::nullopt);
}

TEST(Fused, NeedsTheSameNumberOfExperts) {
  for (const OpSpec& spec : {kGroupedForward, kGroupedBackward}) {
    ProductAndActivation parts = unfused(spec);
    const size_t offsets = shared_operands(parts.activation)[0].of_activation;
    parts.activation.operands[offsets] = read(DType::kI32, {4});
    EXPECT_NO_THROW(check_spec(parts.activation));
    EXPECT_EQ(fused(parts), std::nullopt);
  }
}

// Some rows of the product, or other columns.
TEST(Fused, NeedsTheWholeProductRead) {
  ProductAndActivation forward = unfused(kForward);
  forward.activation.operands = {read(DType::kBF16, {2, 14}), write(DType::kBF16, {2, 7})};
  EXPECT_NO_THROW(check_spec(forward.activation));
  EXPECT_EQ(fused(forward), std::nullopt);
  ProductAndActivation backward = unfused(kBackward);
  backward.activation.operands = {read(DType::kBF16, {2, 14}), read(DType::kBF16, {2, 7}),
                                  write(DType::kBF16, {2, 14})};
  EXPECT_EQ(fused(backward), std::nullopt);
}

}  // namespace
}  // namespace braid
