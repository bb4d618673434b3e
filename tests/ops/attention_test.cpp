#include "ops/attention.h"

#include <cmath>

#include "ops/attention_step.h"
#include "ops/specs.h"

namespace braid {
namespace {

// N = 8 rows of 2 sequences, H = 4, K = 2, D = 6.
const AttentionAttributes kAttributes{.heads = 4, .kv_heads = 2, .head_size = 6, .sequence = 4};
constexpr int64_t kQkvWidth = (4 + 2 * 2) * 6;
constexpr int64_t kOutWidth = 4 * 6;

OpSpec forward_spec(DType dtype) {
  return {
      "attention",
      to_attributes(kAttributes),
      {read(dtype, {8, kQkvWidth}), write(dtype, {8, kOutWidth}), write(DType::kF32, {2, 4, 4})}};
}

OpSpec backward_spec(DType dtype) {
  return {"attention_backward",
          to_attributes(kAttributes),
          {read(dtype, {8, kQkvWidth}), read(dtype, {8, kOutWidth}), read(DType::kF32, {2, 4, 4}),
           read(dtype, {8, kOutWidth}), write(dtype, {8, kQkvWidth})}};
}

// A causal row t of a sequence of 4 reads t + 1 keys: 10 pairs per sequence and head, 2 flops per
// pair, head element and product.
TEST(AttentionCost, CountsCausalPairsOnly) {
  constexpr double kPairs = 2.0 * 4 * (1 + 2 + 3 + 4);
  constexpr double kProductFlops = 2.0 * kPairs * 6;
  expect_cost(forward_spec(DType::kBF16), {.flops = 2 * kProductFlops,
                                           .bytes_read = 2.0 * 8 * kQkvWidth,
                                           .bytes_written = 2.0 * 8 * kOutWidth + 4 * 32});
  expect_cost(backward_spec(DType::kBF16),
              {.flops = 5 * kProductFlops,
               .bytes_read = 2.0 * 8 * (kQkvWidth + 2 * kOutWidth) + 4 * 32,
               .bytes_written = 2.0 * 8 * kQkvWidth});
}

// Documents of 2 tokens: 1.5 keys per row instead of 2.5, and the sizes of as many sequences.
TEST(AttentionCost, CountsDocumentsByTheirMeanLength) {
  const auto of_documents = [](int64_t length) {
    OpSpec spec = forward_spec(DType::kBF16);
    AttentionAttributes attributes = kAttributes;
    attributes.documents = {.documents = true, .document_length = length};
    spec.attributes = to_attributes(attributes);
    spec.operands.insert(spec.operands.begin() + 1, read(DType::kI32, {8}));
    check_spec(spec);
    return spec;
  };
  const double whole = spec_cost(forward_spec(DType::kBF16)).flops;
  EXPECT_DOUBLE_EQ(spec_cost(of_documents(2)).flops, whole * 1.5 / 2.5);
  EXPECT_DOUBLE_EQ(spec_cost(of_documents(0)).flops, whole);
  EXPECT_DOUBLE_EQ(spec_cost(of_documents(9)).flops, whole);
  const AttentionShape shape = kAttentionOp.attention_shape(of_documents(2));
  EXPECT_EQ(shape.sequences, 4);
  EXPECT_EQ(shape.sequence, 2);
  EXPECT_EQ(shape.queries, 2);
}

// A window of 2 of 4 tokens: 1 + 2 + 2 + 2 pairs instead of 10.
TEST(AttentionCost, CountsPairsInsideTheWindow) {
  const auto in_window = [](OpSpec spec, int64_t window) {
    AttentionAttributes attributes = kAttributes;
    attributes.window.window = window;
    spec.attributes = to_attributes(attributes);
    check_spec(spec);
    return spec;
  };
  for (const OpSpec& spec : {forward_spec(DType::kBF16), backward_spec(DType::kBF16)}) {
    const double whole = spec_cost(spec).flops;
    EXPECT_DOUBLE_EQ(spec_cost(in_window(spec, 2)).flops, whole * 7 / 10);
    EXPECT_DOUBLE_EQ(spec_cost(in_window(spec, 1)).flops, whole * 4 / 10);
    EXPECT_EQ(spec_cost(in_window(spec, 4)).flops, whole);
    EXPECT_EQ(spec_cost(in_window(spec, 9)).flops, whole);
  }
  const AttentionShape shape =
      kAttentionOp.attention_shape(in_window(forward_spec(DType::kBF16), 1));
  EXPECT_TRUE(shape.documents);
  EXPECT_EQ(shape.sequence, 1);
  EXPECT_EQ(shape.sequences, 8);
  expect_refused(with_attribute(in_window(forward_spec(DType::kF32), 2), "window", int64_t{-1}),
                 "window must not be negative");
}

/// The pairs that a step counts, one by one.
double counted_pairs(const AttentionStepAttributes& a) {
  double pairs = 0;
  for (int64_t query = 0; query < a.queries; ++query) {
    for (int64_t key = 0; key < a.keys; ++key) {
      const int64_t distance = a.window.query_positions.of(a.query_begin + query) -
                               a.key_positions.of(a.key_begin + key);
      const bool after = a.causal && key > query + a.keys - a.queries;
      pairs += !after && distance < a.window.limit.window ? 1 : 0;
    }
  }
  return pairs;
}

TEST(AttentionStepCost, CountsPairsInsideTheWindow) {
  const TokenPositions queries{.first_begin = 6, .second_begin = 12, .split = 6};
  const TokenPositions keys{.first_begin = 0, .second_begin = 18, .split = 6};
  for (const int64_t window : {1, 3, 7, 12, 40}) {
    for (const bool own : {false, true}) {
      const AttentionStepAttributes a{.heads = 1,
                                      .kv_heads = 1,
                                      .head_size = 2,
                                      .sequence = 12,
                                      .kv_sequence = 12,
                                      .queries = 12,
                                      .keys = own ? 12 : 6,
                                      .causal = own,
                                      .key_positions = own ? queries : keys,
                                      .window = {.limit = {window}, .query_positions = queries}};
      const OpSpec spec{"attention_step",
                        to_attributes(a),
                        {read(DType::kF32, {12, 6}), read(DType::kF32, {12, 4}),
                         write(DType::kF32, {12, 2}), write(DType::kF32, {1, 1, 12})}};
      check_spec(spec);
      EXPECT_EQ(spec_cost(spec).flops, 2 * 2 * 2 * counted_pairs(a)) << window << " " << own;
    }
  }
}

struct BadAttribute {
  const char* name;
  int64_t value;
  const char* message;
};

TEST(AttentionCheck, RefusesHeadsThatDoNotFit) {
  const BadAttribute cases[] = {
      {"heads", 5, "heads must be a positive multiple of kv_heads"},
      {"heads", 0, "heads must be a positive multiple of kv_heads"},
      {"heads", -2, "heads must be a positive multiple of kv_heads"},
      {"kv_heads", 3, "heads must be a positive multiple of kv_heads"},
      {"kv_heads", 0, "heads must be a positive multiple of kv_heads"},
      {"kv_heads", 4, "a row of qkv must hold heads + 2 kv_heads heads"},
      {"head_size", 8, "a row of qkv must hold heads + 2 kv_heads heads"},
      {"head_size", 0, "a row of qkv must hold heads + 2 kv_heads heads"},
      {"sequence", 3, "rows must be a multiple of sequence"},
      {"sequence", 0, "rows must be a multiple of sequence"},
      {"sequence", -4, "rows must be a multiple of sequence"},
      {"sequence", 8, "operand lse is f32 [2,4,4], expected f32 [1,4,8]"},
  };
  for (const BadAttribute& bad : cases) {
    for (const OpSpec& spec : {forward_spec(DType::kF32), backward_spec(DType::kF32)}) {
      expect_refused(with_attribute(spec, bad.name, bad.value), bad.message);
    }
  }
}

TEST(AttentionCheck, StatisticsAreF32ForNarrowData) {
  expect_refused(with_operand(forward_spec(DType::kBF16), 2, write(DType::kBF16, {2, 4, 4})),
                 "operand lse is bf16 [2,4,4], expected f32 [2,4,4]");
}

TEST(AttentionBuilder, ScaleZeroStandsForTheInverseRootOfTheHeadSize) {
  for (const double scale : {0.0, 0.25}) {
    StageGraph graph;
    GraphBuilder builder(graph);
    AttentionAttributes attributes = kAttributes;
    attributes.scale = scale;
    attention(builder, builder.add_activation("qkv", DType::kF32, {8, kQkvWidth}), attributes,
              "core");
    const auto built = attributes_of<AttentionAttributes>(graph.forward.front().spec);
    EXPECT_EQ(built.scale, scale == 0.0 ? 1 / std::sqrt(6.0) : scale);
  }
}

}  // namespace
}  // namespace braid
