#include "ops/optimizer.h"

#include "ops/specs.h"

namespace braid {
namespace {

OpSpec adamw_spec(bool has_param) {
  const OperandSpec state = read_write(DType::kF32, {100});
  OpSpec spec{"adamw",
              to_attributes(AdamwAttributes{.has_param = has_param}),
              {read(DType::kF32, {100}), read(DType::kF32, {1}), read(DType::kF32, {3}), state,
               state, state}};
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

TEST(AdamwCheck, HasParamDecidesTheNumberOfOperands) {
  expect_refused(with_attribute(adamw_spec(true), "has_param", false), "7 operands, expected 6");
  expect_refused(with_attribute(adamw_spec(false), "has_param", true), "(param) is missing");
}

TEST(AdamwCheck, GradientsAndStateAreF32AndTheParameterBf16) {
  expect_refused(with_operand(adamw_spec(true), 0, read(DType::kBF16, {100})), "grad must be f32");
  expect_refused(with_operand(adamw_spec(true), 4, read_write(DType::kBF16, {100})),
                 "operand exp_avg is bf16 [100]");
  expect_refused(with_operand(adamw_spec(true), 6, write(DType::kF32, {100})),
                 "operand param is f32 [100], expected bf16 [100]");
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

TEST(SquaredNormCost, ReadsTheGradientOnce) {
  expect_cost({"squared_norm", {}, {read(DType::kF32, {100}), write(DType::kF64, {1})}},
              {.flops = 200, .bytes_read = 400, .bytes_written = 8});
}

}  // namespace
}  // namespace braid
