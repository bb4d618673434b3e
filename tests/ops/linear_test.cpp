#include "ops/linear.h"

#include "ops/specs.h"

namespace braid {
namespace {

// N = 3, K = 5, M = 7, so that every wrong dimension shows.
OpSpec linear_spec(DType dtype, bool has_bias) {
  OpSpec spec{"linear",
              to_attributes(LinearAttributes{.has_bias = has_bias}),
              {read(dtype, {3, 5}), read(dtype, {7, 5})}};
  if (has_bias) {
    spec.operands.push_back(read(dtype, {7}));
  }
  spec.operands.push_back(write(dtype, {3, 7}));
  return spec;
}

OpSpec dgrad_spec(bool accumulate) {
  return {"linear_dgrad",
          to_attributes(LinearDgradAttributes{.accumulate = accumulate}),
          {read(DType::kBF16, {3, 7}), read(DType::kBF16, {7, 5}),
           accumulate ? read_write(DType::kBF16, {3, 5}) : write(DType::kBF16, {3, 5})}};
}

OpSpec wgrad_spec(bool accumulate) {
  OpSpec spec{"linear_wgrad",
              to_attributes(LinearWgradAttributes{.has_bias = true, .accumulate = accumulate}),
              {read(DType::kBF16, {3, 5}), read(DType::kBF16, {3, 7}), write(DType::kF32, {7, 5}),
               write(DType::kF32, {7})}};
  spec.operands[2].access = spec.operands[3].access = accumulate_access(accumulate);
  return spec;
}

constexpr double kFlops = 2.0 * 3 * 5 * 7;

TEST(LinearCost, Is2NMKFlopsForAllThreeProducts) {
  EXPECT_EQ(spec_cost(linear_spec(DType::kF32, false)).flops, kFlops);
  EXPECT_EQ(spec_cost(linear_spec(DType::kF32, true)).flops, kFlops);
  EXPECT_EQ(spec_cost(dgrad_spec(false)).flops, kFlops);
  EXPECT_EQ(spec_cost(dgrad_spec(true)).flops, kFlops);
  EXPECT_EQ(spec_cost(wgrad_spec(true)).flops, kFlops);
}

TEST(LinearCost, ReadsOperandsOnceAndMainGradsOnlyToAccumulate) {
  expect_cost(linear_spec(DType::kBF16, true),
              {.flops = kFlops, .bytes_read = 2 * (15 + 35 + 7), .bytes_written = 2 * 21});
  expect_cost(dgrad_spec(false),
              {.flops = kFlops, .bytes_read = 2 * (21 + 35), .bytes_written = 2 * 15});
  expect_cost(dgrad_spec(true),
              {.flops = kFlops, .bytes_read = 2 * (21 + 35 + 15), .bytes_written = 2 * 15});
  expect_cost(wgrad_spec(false),
              {.flops = kFlops, .bytes_read = 2 * (15 + 21), .bytes_written = 4 * 42});
  expect_cost(wgrad_spec(true),
              {.flops = kFlops, .bytes_read = 2 * (15 + 21) + 4 * 42, .bytes_written = 4 * 42});
}

TEST(LinearCheck, WeightMustFitTheInput) {
  const OpSpec spec = linear_spec(DType::kF32, false);
  expect_refused(with_operand(spec, 1, read(DType::kF32, {7, 6})), "w must be [M,K]");
  expect_refused(with_operand(spec, 1, read(DType::kBF16, {7, 5})), "w must be [M,K]");
  expect_refused(with_operand(dgrad_spec(false), 1, read(DType::kBF16, {6, 5})), "w must be [M,K]");
}

TEST(LinearCheck, InputAndOutputGradientOfWgradMustHaveTheSameRows) {
  expect_refused(with_operand(wgrad_spec(true), 1, read(DType::kBF16, {4, 7})),
                 "x and dy must agree in dtype and rows");
  expect_refused(with_operand(wgrad_spec(true), 1, read(DType::kF32, {3, 7})),
                 "x and dy must agree in dtype and rows");
}

TEST(LinearCheck, MainGradsAreF32OrBothBf16) {
  OpSpec narrow = with_operand(wgrad_spec(true), 2, read_write(DType::kBF16, {7, 5}));
  expect_refused(narrow, "operand db is f32 [7], expected bf16 [7]");
  narrow = with_operand(narrow, 3, read_write(DType::kBF16, {7}));
  EXPECT_NO_THROW(check_spec(narrow));
  for (const size_t factor : {0, 1}) {  // gradients of f32 values are f32
    narrow.operands[factor].dtype = DType::kF32;
  }
  expect_refused(narrow, "operand dw is bf16 [7,5], expected f32 [7,5]");
  expect_refused(with_operand(wgrad_spec(true), 3, read_write(DType::kBF16, {7})),
                 "operand db is bf16 [7], expected f32 [7]");
}

TEST(LinearCheck, AccumulateDecidesTheAccessOfGradients) {
  expect_refused(with_attribute(wgrad_spec(true), "accumulate", false), "operand dw has access");
  expect_refused(with_attribute(wgrad_spec(false), "accumulate", true), "operand dw has access");
  expect_refused(with_attribute(dgrad_spec(false), "accumulate", true), "operand dx has access");
}

TEST(LinearCheck, LeavesOutOnlyABiasThatIsThere) {
  EXPECT_NO_THROW(check_spec(with_attribute(linear_spec(DType::kF32, true), "adds_bias", false)));
  expect_refused(with_attribute(linear_spec(DType::kF32, false), "adds_bias", false),
                 "there is no bias to leave out");
}

OpSpec slice_spec(const FeatureSlice& slice, int64_t features) {
  return {
      "linear_wgrad",
      to_attributes(LinearWgradAttributes{.accumulate = false, .features = slice}),
      {read(DType::kBF16, {3, 5}), read(DType::kBF16, {3, 7}), write(DType::kF32, {features, 5})}};
}

TEST(LinearCheck, ASliceOfFeaturesIsRowsOfTheGradient) {
  const OpSpec spec = slice_spec({.first_feature = 2, .end_feature = 6}, 4);
  EXPECT_NO_THROW(check_spec(spec));
  expect_cost(spec,
              {.flops = 2.0 * 3 * 5 * 4, .bytes_read = 2 * (15 + 3 * 4), .bytes_written = 4 * 20});
  expect_refused(slice_spec({.first_feature = 2, .end_feature = 6}, 7), "expected f32 [4,5]");
  for (const FeatureSlice& wrong : {FeatureSlice{3, 8}, FeatureSlice{4, 4}, FeatureSlice{-1, 4}}) {
    expect_refused(slice_spec(wrong, 4), "the slice of features must be some of dy's");
  }
  EXPECT_EQ(slice_spec({}, 7).find_attribute("first_feature"), nullptr);
}

TEST(LinearCheck, HasBiasDecidesTheNumberOfOperands) {
  expect_refused(with_attribute(linear_spec(DType::kF32, true), "has_bias", false),
                 "operand y has access");
  expect_refused(with_attribute(wgrad_spec(true), "has_bias", false), "operands, expected 3");
}

}  // namespace
}  // namespace braid
