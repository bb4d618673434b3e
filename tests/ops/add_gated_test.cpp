#include "ops/add_gated.h"

#include "ops/activation.h"
#include "ops/forward_graph.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

OpSpec forward_spec() {
  return {"add_gated",
          {},
          {read(kBF16, {4, 6}), read(kBF16, {4, 6}), read(kF32, {4, 1}), write(kBF16, {4, 6})}};
}
OpSpec backward_spec() {
  return {"add_gated_backward",
          {},
          {read(kBF16, {4, 6}), read(kF32, {4, 1}), read(kBF16, {4, 6}), write(kBF16, {4, 6}),
           write(kF32, {4, 1})}};
}

TEST(AddGatedCost, ReadsEachRowAndItsGateOnce) {
  expect_cost(forward_spec(),
              {.flops = 48, .bytes_read = 2 * 2 * 24 + 4 * 4, .bytes_written = 2 * 24});
  expect_cost(backward_spec(),
              {.flops = 72, .bytes_read = 2 * 2 * 24 + 4 * 4, .bytes_written = 2 * 24 + 4 * 4});
}

TEST(AddGatedCheck, RefusesOtherShapesAndTypes) {
  expect_refused(with_operand(forward_spec(), 1, read(kBF16, {4, 5})), "x must be like a");
  expect_refused(with_operand(forward_spec(), 2, read(kF32, {4, 6})), "operand z");
  expect_refused(with_operand(forward_spec(), 2, read(kBF16, {4, 1})), "operand z");
  expect_refused(with_operand(backward_spec(), 2, read(kBF16, {3, 6})), "operand dy");
  expect_refused(with_operand(backward_spec(), 4, write(kBF16, {4, 1})), "operand dz");
}

TEST(AddGatedBackward, HandsTheGradientOnToTheAddend) {
  Forward forward(kF32);
  GraphBuilder& b = forward.builder();
  const ValueId a = gelu(b, forward.activation("u", {kRows, 4}), "a");
  const GatedAddend gated{.x = forward.activation("x", {kRows, 4}),
                          .z = forward.activation("z", {kRows, 1})};
  forward.loss_of(add_gated(b, a, gated, "y"));
  const std::vector<std::string> backward = backward_of(forward.differentiated());
  EXPECT_THAT(std::vector<std::string>(backward.end() - 2, backward.end()),
              testing::ElementsAre("add_gated_backward(x, z, y.grad -> x.grad, z.grad)",
                                   "gelu_backward(u, y.grad -> u.grad)"));
}

}  // namespace
}  // namespace braid
