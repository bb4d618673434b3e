#include "ops/norm.h"

#include "ops/specs.h"

namespace braid {
namespace {

const OperandSpec kX = read(DType::kBF16, {3, 8});
const OperandSpec kW = read(DType::kBF16, {8});
const OperandSpec kY = write(DType::kBF16, {3, 8});
const OperandSpec kStatistic = write(DType::kF32, {3});
const OperandSpec kReadStatistic = read(DType::kF32, {3});
const OperandSpec kMainGrad = read_write(DType::kF32, {8});

OpSpec rmsnorm_backward_spec(bool has_d_sum, bool accumulate) {
  OpSpec spec{
      "rmsnorm_backward",
      to_attributes(NormBackwardAttributes{.has_d_sum = has_d_sum, .accumulate = accumulate}),
      {kX, kW, kReadStatistic, kX}};
  if (has_d_sum) {
    spec.operands.push_back(kX);
  }
  spec.operands.push_back(kY);
  spec.operands.push_back(accumulate ? kMainGrad : write(DType::kF32, {8}));
  return spec;
}

TEST(NormCost, MovesRowsAndStatisticsOnce) {
  const std::vector<Attribute> attributes = to_attributes(NormAttributes{});
  expect_cost({"rmsnorm", attributes, {kX, kW, kY, kStatistic}},
              {.flops = 4 * 24, .bytes_read = 2 * (24 + 8), .bytes_written = 2 * 24 + 4 * 3});
  expect_cost({"add_rmsnorm", attributes, {kX, kX, kW, kY, kY, kStatistic}},
              {.flops = 5 * 24, .bytes_read = 2 * (48 + 8), .bytes_written = 2 * 48 + 4 * 3});
  expect_cost({"layernorm", attributes, {kX, kW, kW, kY, kStatistic, kStatistic}},
              {.flops = 7 * 24, .bytes_read = 2 * (24 + 16), .bytes_written = 2 * 24 + 8 * 3});
  expect_cost({"add_layernorm", attributes, {kX, kX, kW, kW, kY, kY, kStatistic, kStatistic}},
              {.flops = 8 * 24, .bytes_read = 2 * (48 + 16), .bytes_written = 2 * 48 + 8 * 3});
}

TEST(NormBackwardCost, ReadsMainGradsOnlyToAccumulate) {
  expect_cost(rmsnorm_backward_spec(true, true), {.flops = 9 * 24,
                                                  .bytes_read = 2 * (72 + 8) + 4 * 3 + 4 * 8,
                                                  .bytes_written = 2 * 24 + 4 * 8});
  expect_cost(
      rmsnorm_backward_spec(false, false),
      {.flops = 9 * 24, .bytes_read = 2 * (48 + 8) + 4 * 3, .bytes_written = 2 * 24 + 4 * 8});
}

TEST(NormCheck, StatisticsAreF32ForNarrowData) {
  const OpSpec spec{"rmsnorm", to_attributes(NormAttributes{}), {kX, kW, kY, kStatistic}};
  expect_refused(with_operand(spec, 3, write(DType::kBF16, {3})),
                 "operand rstd is bf16 [3], expected f32 [3]");
}

TEST(NormBackwardCheck, HasDSumDecidesTheNumberOfOperands) {
  expect_refused(with_attribute(rmsnorm_backward_spec(true, true), "has_d_sum", false),
                 "operand dx has access");
  expect_refused(with_attribute(rmsnorm_backward_spec(false, true), "has_d_sum", true),
                 "operand d_sum has access");
}

TEST(NormBackwardCheck, AccumulateDecidesTheAccessOfMainGrads) {
  expect_refused(with_attribute(rmsnorm_backward_spec(false, true), "accumulate", false),
                 "operand dw has access");
}

}  // namespace
}  // namespace braid
