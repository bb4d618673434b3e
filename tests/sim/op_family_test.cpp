#include "sim/op_family.h"

#include "ops/attention_step.h"
#include "ops/rope.h"
#include "sim/sim_specs.h"

namespace braid {
namespace {

TEST(OpFamily, OfEveryOp) {
  for (const OpDefinition* op : all_ops()) {
    const OpFamily family = family_of({std::string(op->name), {}, {}});
    EXPECT_EQ(family == OpFamily::kCommunication, op->op_class == OpClass::kCommunication)
        << op->name;
    EXPECT_FALSE(family_name(family).empty());
    const bool copies = op->op_class == OpClass::kCopy && family != OpFamily::kHostCopy;
    EXPECT_EQ(computes_on_device(family), op->op_class == OpClass::kCompute || copies) << op->name;
  }
  EXPECT_THROW(family_of({"fly", {}, {}}), InternalError);
}

// rows x columns are those of the result, which depth is summed over; flops are twice the product.
TEST(GemmShape, OfAllThreeProducts) {
  const auto expect = [](const OpSpec& spec, int64_t rows, int64_t columns, int64_t depth) {
    const GemmShape shape = gemm_shape(spec);
    EXPECT_EQ(shape, (GemmShape{rows, columns, depth, DType::kBF16})) << spec.op;
    EXPECT_EQ(spec_cost(spec).flops, 2.0 * static_cast<double>(rows * columns * depth));
  };
  expect(linear_spec(24, 10, 7), 24, 10, 7);
  expect(linear_dgrad_spec(24, 10, 7), 24, 7, 10);
  expect(linear_wgrad_spec(24, 10, 7), 10, 7, 24);
  EXPECT_THROW(gemm_shape(add_spec(3)), std::exception);
}

// Of groups, all together.
TEST(GemmShape, OfGroupsHasTheFlopsOfAll) {
  for (const OpSpec& spec :
       {grouped_linear_spec(24, 10, 7, 3), grouped_linear_wgrad_spec(24, 10, 7, 3)}) {
    const GemmShape shape = gemm_shape(spec);
    EXPECT_EQ(shape.groups, 3);
    EXPECT_EQ(spec_cost(spec).flops, 2.0 * 24 * 10 * 7);
    EXPECT_EQ(shape.rows * shape.columns * shape.depth, 24 * 10 * 7) << spec.op;
  }
}

TEST(GemmShape, OfAProductWithSwigluIsTheProducts) {
  EXPECT_EQ(family_of(linear_swiglu_spec(24, 5, 7)), OpFamily::kGemm);
  EXPECT_EQ(gemm_shape(linear_swiglu_spec(24, 5, 7)), gemm_shape(linear_spec(24, 10, 7)));
  EXPECT_EQ(family_of(linear_dgrad_swiglu_backward_spec(24, 10, 7)), OpFamily::kGemm);
  EXPECT_EQ(gemm_shape(linear_dgrad_swiglu_backward_spec(24, 10, 7)),
            gemm_shape(linear_dgrad_spec(24, 10, 7)));
}

TEST(AttentionShape, OfBothDirections) {
  const AttentionShape shape = attention_shape(attention_spec({3, 512, 8, 2, 64}, true));
  EXPECT_EQ(shape.sequences, 3);
  EXPECT_EQ(shape.sequence, 512);
  EXPECT_EQ(shape.heads, 8);
  EXPECT_EQ(shape.kv_heads, 2);
  EXPECT_EQ(shape.head_size, 64);
  EXPECT_TRUE(shape.backward);
  EXPECT_FALSE(attention_shape(attention_spec({})).backward);
}

/// A step of 256 queries over 512 of 1024 keys, of 3 sequences.
AttentionStepAttributes attention_step() {
  return {.heads = 8,
          .kv_heads = 2,
          .head_size = 64,
          .sequence = 512,
          .kv_sequence = 1024,
          .query_begin = 128,
          .queries = 256,
          .key_begin = 0,
          .keys = 512};
}

TEST(AttentionShape, OfAStepItIsThatOfItsPairs) {
  const OperandSpec qkv = read(DType::kBF16, {3 * 512, (8 + 2 * 2) * 64});
  const OperandSpec kv = read(DType::kBF16, {3 * 1024, 2 * 2 * 64});
  const OpSpec forward{
      "attention_step",
      to_attributes(attention_step()),
      {qkv, kv, write(DType::kF32, {3 * 512, 8 * 64}), write(DType::kF32, {3, 8, 512})}};
  EXPECT_EQ(family_of(forward), OpFamily::kAttention);
  const AttentionShape shape = attention_shape(forward);
  EXPECT_EQ(shape.sequences, 3);
  EXPECT_EQ(shape.sequence, 512);
  EXPECT_EQ(shape.queries, 256);
  EXPECT_EQ(shape.heads, 8);
  EXPECT_FALSE(shape.backward);
  const OpSpec backward{"attention_step_backward",
                        to_attributes(AttentionStepBackwardAttributes{.step = attention_step()}),
                        {qkv}};
  EXPECT_EQ(family_of(backward), OpFamily::kAttention);
  EXPECT_TRUE(attention_shape(backward).backward);
}

TEST(TimingKey, ForgetsNumbersThatCostNothing) {
  const OpSpec spec = attention_spec({});
  EXPECT_EQ(timing_key(with_attribute(spec, "scale", 0.5)), timing_key(spec));
  EXPECT_NE(timing_key(with_attribute(spec, "kv_heads", int64_t{16})), timing_key(spec));
  OpSpec reordered = spec;
  std::swap(reordered.attributes.front(), reordered.attributes.back());
  EXPECT_EQ(timing_key(reordered), timing_key(spec));
}

TEST(TimingKey, HasNoScalingOfRotaryFrequencies) {
  RopeAttributes attributes{.heads = 2, .kv_heads = 1, .head_size = 4, .sequence = 3};
  const auto spec = [&] {
    return OpSpec{"rope",
                  to_attributes(attributes),
                  {read(DType::kBF16, {3, 16}), write(DType::kBF16, {3, 16})}};
  };
  const OpSpec plain = spec();
  attributes.scaling = {
      .type = RopeType::kYarn, .factor = 4, .original_max_position_embeddings = 64};
  EXPECT_NE(spec(), plain);
  EXPECT_EQ(timing_key(spec()), timing_key(plain));
}

}  // namespace
}  // namespace braid
