#include "ops/optimizer.h"

#include <array>
#include <bit>
#include <cmath>

#include "ops/specs.h"

namespace braid {
namespace {

OpSpec adamw_spec(bool has_param, DType moments = DType::kF32) {
  const OperandSpec weight = read_write(DType::kF32, {100});
  const OperandSpec moment = read_write(moments, {100});
  const OperandSpec scalars = read(DType::kF32, {moments == DType::kBF16 ? 4 : 3});
  OpSpec spec{"adamw",
              to_attributes(AdamwAttributes{.has_param = has_param}),
              {read(DType::kF32, {100}), read(DType::kF32, {1}), scalars, weight, moment, moment}};
  if (has_param) {
    spec.operands.push_back(write(DType::kBF16, {100}));
  }
  return spec;
}

TEST(AdamwCost, IsAboutMovingTheState) {
  expect_cost(adamw_spec(false),
              {.flops = 15 * 100, .bytes_read = 4 * (4 * 100 + 4), .bytes_written = 4 * 3 * 100});
  expect_cost(
      adamw_spec(true),
      {.flops = 15 * 100, .bytes_read = 4 * (4 * 100 + 4), .bytes_written = 4 * 3 * 100 + 2 * 100});
}

TEST(AdamwCost, Bf16MomentsAreHalfTheBytes) {
  expect_cost(adamw_spec(false, DType::kBF16), {.flops = 15 * 100,
                                                .bytes_read = (4 + 4 + 2 + 2) * 100 + 4 * 5,
                                                .bytes_written = (4 + 2 + 2) * 100});
}

TEST(AdamwCheck, HasParamDecidesTheNumberOfOperands) {
  expect_refused(with_attribute(adamw_spec(true), "has_param", false), "7 operands, expected 6");
  expect_refused(with_attribute(adamw_spec(false), "has_param", true), "(param) is missing");
}

TEST(AdamwCheck, GradientsAreF32OrBf16StateF32AndTheParameterBf16) {
  EXPECT_NO_THROW(check_spec(with_operand(adamw_spec(true), 0, read(DType::kBF16, {100}))));
  expect_refused(with_operand(adamw_spec(true), 0, read(DType::kF64, {100})),
                 "grad must be f32 or bf16");
  expect_refused(with_operand(adamw_spec(true), 4, read_write(DType::kF64, {100})),
                 "operand exp_avg is f64 [100]");
  expect_refused(with_operand(adamw_spec(true), 6, write(DType::kF32, {100})),
                 "operand param is f32 [100], expected bf16 [100]");
}

TEST(AdamwCheck, BothMomentsHaveOneTypeAndBf16TakesAFourthScalar) {
  const OpSpec spec = adamw_spec(true, DType::kBF16);
  EXPECT_NO_THROW(check_spec(spec));
  expect_refused(with_operand(spec, 5, read_write(DType::kF32, {100})),
                 "operand exp_avg_sq is f32 [100], expected bf16 [100]");
  expect_refused(with_operand(spec, 2, read(DType::kF32, {3})),
                 "operand exp_avg is bf16 [100], expected f32 [100]");
  expect_refused(with_operand(adamw_spec(true), 2, read(DType::kF32, {4})),
                 "operand exp_avg is f32 [100], expected bf16 [100]");
  expect_refused(with_operand(spec, 2, read(DType::kF32, {5})),
                 "scalars must be f32 [3], or [4] for bf16 moments");
}

TEST(AdamwScalars, AreThoseOfTheStep) {
  EXPECT_THAT(adamw_scalars(0.25, 0.5, 0.75, 2), testing::ElementsAre(0.25f, 0.75f, 0.4375f, 2.0f));
  EXPECT_EQ(adamw_scalars(0.25, 0.5, 0.75, (int64_t{1} << 24) + 3)[3], 3.0f);
}

// An element that keeps its values gets other bits in each step: each of the 32 bits is 1 in half
// of the steps, whatever the others are (5 standard deviations).
TEST(MomentRoundingBits, AreIndependentOverSteps) {
  constexpr int kSteps = 20'000;
  for (const uint32_t grad : {0u, 0x3F80'0000u, 0xB5A4'0000u}) {  // also one that was bf16
    std::array<std::array<int, 32>, 32> both{};
    for (int step = 1; step <= kSteps; ++step) {
      const auto seed = std::bit_cast<uint32_t>(static_cast<float>(step));
      const uint32_t bits = moment_rounding_bits(grad, 0x3F80'0000u, 0x3A83'3DCDu, seed);
      for (size_t i = 0; i < 32; ++i) {
        for (size_t j = 0; j <= i; ++j) {
          both[i][j] += static_cast<int>((bits >> i) & (bits >> j) & 1);
        }
      }
    }
    for (size_t i = 0; i < 32; ++i) {
      for (size_t j = 0; j <= i; ++j) {
        const double chance = i == j ? 0.5 : 0.25;
        EXPECT_NEAR(both[i][j], chance * kSteps, 5 * std::sqrt(chance * (1 - chance) * kSteps))
            << i << " " << j;
      }
    }
  }
}

TEST(ClipScaleCheck, NormIsNotNegative) {
  const OpSpec spec{"clip_scale",
                    to_attributes(ClipScaleAttributes{.max_norm = 0.0}),
                    {read(DType::kF64, {9}), write(DType::kF32, {1}), write(DType::kF32, {1})}};
  EXPECT_NO_THROW(check_spec(spec));
  expect_refused(with_attribute(spec, "max_norm", -1.0), "max_norm must not be negative");
  expect_refused(with_operand(spec, 0, read(DType::kF32, {9})), "partials must be f64");
  expect_cost(spec, {.flops = 9, .bytes_read = 8 * 9, .bytes_written = 8});
}

TEST(AverageWeightsCheck, DecayIsBelowOne) {
  const OpSpec spec{"average_weights",
                    to_attributes(AverageWeightsAttributes{.decay = 0.5}),
                    {read(DType::kF32, {9}), read(DType::kF32, {1}), read_write(DType::kF32, {9})}};
  EXPECT_NO_THROW(check_spec(with_attribute(spec, "decay", 0.0)));
  for (const double decay : {-0.1, 1.0}) {
    expect_refused(with_attribute(spec, "decay", decay), "decay must lie in [0, 1)");
  }
  expect_refused(with_operand(spec, 0, read(DType::kBF16, {9})), "weight must be f32");
  expect_cost(spec, {.flops = 3 * 9, .bytes_read = 4 * (9 + 1 + 9), .bytes_written = 4 * 9});
}

TEST(SquaredNormCost, ReadsTheGradientOnce) {
  expect_cost({"squared_norm", {}, {read(DType::kF32, {100}), write(DType::kF64, {1})}},
              {.flops = 200, .bytes_read = 400, .bytes_written = 8});
}

}  // namespace
}  // namespace braid
