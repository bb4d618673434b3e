#include "ops/momentum.h"

#include "ops/specs.h"

namespace braid {
namespace {

std::vector<OperandSpec> operands_of(DType moments) {
  const DType f32 = DType::kF32;
  return {read(f32, {100}), read(f32, {1}), read(f32, {moments == DType::kBF16 ? 4 : 3}),
          read_write(f32, {100}), read_write(moments, {100})};
}

TEST(LionCost, IsOneMomentLessThanThatOfAdamw) {
  const OpSpec wide{"lion", to_attributes(LionAttributes{}), operands_of(DType::kF32)};
  expect_cost(wide,
              {.flops = 11 * 100, .bytes_read = 4 * (3 * 100 + 4), .bytes_written = 4 * 2 * 100});
  const OpSpec narrow{"lion", to_attributes(LionAttributes{}), operands_of(DType::kBF16)};
  expect_cost(
      narrow,
      {.flops = 11 * 100, .bytes_read = (4 + 4 + 2) * 100 + 4 * 5, .bytes_written = (4 + 2) * 100});
}

TEST(SgdCheck, HasAMomentOnlyWithMomentum) {
  const OpSpec spec{"sgd", to_attributes(SgdAttributes{.momentum = 0.9}), operands_of(DType::kF32)};
  EXPECT_NO_THROW(check_spec(spec));
  expect_refused(with_attribute(spec, "momentum", 0.0), "5 operands, expected 4");
  OpSpec plain{"sgd", to_attributes(SgdAttributes{.has_param = true}), operands_of(DType::kF32)};
  plain.operands[4] = write(DType::kBF16, {100});
  EXPECT_NO_THROW(check_spec(plain));
  expect_refused(with_attribute(plain, "momentum", 0.5), "operand exp_avg");
}

TEST(LionCheck, TheMomentIsOfTheTypeThatScalarsSay) {
  const OpSpec spec{"lion", to_attributes(LionAttributes{}), operands_of(DType::kBF16)};
  EXPECT_NO_THROW(check_spec(spec));
  expect_refused(with_operand(spec, 2, read(DType::kF32, {3})),
                 "operand exp_avg is bf16 [100], expected f32 [100]");
}

}  // namespace
}  // namespace braid
