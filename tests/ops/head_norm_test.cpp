#include "ops/head_norm.h"

#include "ops/forward_graph.h"
#include "ops/specs.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

/// Rows of 3 query, 2 key and 2 value heads of 4 elements.
OpSpec spec_of(const HeadNormAttributes& attributes) {
  return {"head_norm",
          to_attributes(attributes),
          {read(DType::kBF16, {5, 28}), read(DType::kBF16, {attributes.whole ? 12 : 4}),
           read(DType::kBF16, {attributes.whole ? 8 : 4}), write(DType::kBF16, {5, 28}),
           write(DType::kF32, {5, attributes.whole ? 2 : 5})}};
}

constexpr HeadNormAttributes kNormedHeads{.heads = 3, .kv_heads = 2, .head_size = 4};
constexpr HeadNormAttributes kWhole{.heads = 3, .kv_heads = 2, .head_size = 4, .whole = true};

TEST(HeadNormCheck, SizesFollowFromHeads) {
  EXPECT_NO_THROW(check_spec(spec_of(kNormedHeads)));
  EXPECT_NO_THROW(check_spec(spec_of(kWhole)));
  expect_refused(with_attribute(spec_of(kNormedHeads), "whole", true),
                 "operand query_weight is bf16 [4], expected bf16 [12]");
  expect_refused(with_attribute(spec_of(kNormedHeads), "heads", int64_t{4}),
                 "a row must hold heads + 2 kv_heads heads");
  expect_refused(with_attribute(spec_of(kNormedHeads), "kv_heads", int64_t{0}), "must be positive");
  expect_refused(with_operand(spec_of(kNormedHeads), 4, write(DType::kF32, {5, 2})),
                 "operand rstd is f32 [5,2], expected f32 [5,5]");
}

TEST(HeadNormCost, MovesRowsOnce) {
  expect_cost(
      spec_of(kNormedHeads),
      {.flops = 4 * 140, .bytes_read = 2 * (140 + 4 + 4), .bytes_written = 2 * 140 + 4 * 25});
}

TEST(HeadNormBackward, GivesGradientsOfRowsAndOfBothWeights) {
  Forward forward;
  const ValueId qkv = forward.activation("qkv", {kRows, 28});
  forward.loss_of(head_norm(forward.builder(),
                            {.qkv = qkv,
                             .query_weight = forward.param("q_norm", {4}),
                             .key_weight = forward.param("k_norm", {4})},
                            kNormedHeads, "normed"));
  const StageGraph& graph = forward.differentiated();
  EXPECT_EQ(backward_of(graph).back(),
            "head_norm_backward(qkv, q_norm, k_norm, normed.rstd, normed.grad -> qkv.grad, "
            "+q_norm.main_grad, +k_norm.main_grad)");
}

// Of a cut into microbatches or sequences, weights and their sums are whole.
TEST(HeadNormBackward, RowsAreThoseOfRowsAndStatistics) {
  const auto is_by_row = find_op("head_norm_backward").pieces.is_by_row;
  std::vector<bool> by_row;
  for (size_t i = 0; i < 8; ++i) {
    by_row.push_back(is_by_row({}, i));
  }
  EXPECT_THAT(by_row, ElementsAre(true, false, false, true, true, true, false, false));
}

}  // namespace
}  // namespace braid
