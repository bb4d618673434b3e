#include "ops/activation.h"

#include "ops/specs.h"

namespace braid {
namespace {

const OperandSpec kHalf = read(DType::kBF16, {3, 4});
const OperandSpec kWhole = read(DType::kBF16, {3, 8});
const OpSpec kSwiglu{"swiglu", {}, {kWhole, write(DType::kBF16, {3, 4})}};
const OpSpec kSwigluBackward{"swiglu_backward", {}, {kWhole, kHalf, write(DType::kBF16, {3, 8})}};

TEST(SwigluCheck, NeedsPairs) {
  const OperandSpec odd = read(DType::kBF16, {3, 9});
  expect_refused(with_operand(kSwiglu, 0, odd), "gate_up must hold pairs of gate and up");
  expect_refused(with_operand(kSwigluBackward, 0, odd), "gate_up must hold pairs of gate and up");
}

TEST(SwigluCheck, OutputIsHalfAsWide) {
  expect_refused(with_operand(kSwiglu, 1, write(DType::kBF16, {3, 8})),
                 "operand y is bf16 [3,8], expected bf16 [3,4]");
  expect_refused(with_operand(kSwigluBackward, 2, write(DType::kBF16, {3, 4})),
                 "operand d_gate_up is bf16 [3,4], expected bf16 [3,8]");
}

TEST(ActivationCost, MovesEachOperandOnce) {
  expect_cost(kSwiglu, {.flops = 3 * 24, .bytes_read = 2 * 24, .bytes_written = 2 * 12});
  expect_cost(kSwigluBackward,
              {.flops = 6 * 24, .bytes_read = 2 * (24 + 12), .bytes_written = 2 * 24});
  expect_cost({"gelu", {}, {kHalf, write(DType::kBF16, {3, 4})}},
              {.flops = 9 * 12, .bytes_read = 2 * 12, .bytes_written = 2 * 12});
  expect_cost({"gelu_backward", {}, {kHalf, kHalf, write(DType::kBF16, {3, 4})}},
              {.flops = 16 * 12, .bytes_read = 2 * 24, .bytes_written = 2 * 12});
}

}  // namespace
}  // namespace braid
