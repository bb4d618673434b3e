#include "ops/adapter.h"

#include "ops/activation.h"
#include "ops/attributes.h"
#include "ops/forward_graph.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr DType kBF16 = DType::kBF16;

OpSpec forward_spec() {
  return {"add_adapters",
          to_attributes(AddAdaptersAttributes{.scale = 2.0, .begin = 0, .second_begin = 5}),
          {read(kBF16, {4, 8}), read(kBF16, {4, 3}), read(kBF16, {4, 2}), write(kBF16, {4, 8})}};
}
OpSpec backward_spec() {
  return {"adapter_grad",
          to_attributes(AdapterGradAttributes{.scale = 2.0, .step = 2, .begin = 1}),
          {read(kBF16, {4, 8}), write(kBF16, {4, 4})}};
}

TEST(AdapterCheck, RefusesColumnsOutsideOfTheRow) {
  check_spec(forward_spec());
  check_spec(backward_spec());
  expect_refused(with_operand(forward_spec(), 2, read(kBF16, {4, 4})),
                 "the columns of z must lie in a row of base");
  OpSpec four = forward_spec();
  four.operands.insert(four.operands.begin() + 1, {read(kBF16, {4, 1}), read(kBF16, {4, 1})});
  expect_refused(four, "operand y");
  expect_refused(with_operand(forward_spec(), 1, read(kBF16, {3, 3})),
                 "z must be of base's dtype and rows");
  expect_refused(with_operand(backward_spec(), 1, write(kBF16, {4, 5})),
                 "the columns of dz must lie in a row of dy");
}

TEST(AdapterCost, ReadsOnlyTheColumnsOfAnAdapter) {
  expect_cost(backward_spec(), {.flops = 16, .bytes_read = 2 * 16, .bytes_written = 2 * 16});
}

TEST(AdapterBackward, HandsTheGradientOnToTheBase) {
  Forward forward(DType::kF32);
  GraphBuilder& b = forward.builder();
  const ValueId base = gelu(b, forward.activation("u", {kRows, 4}), "base");
  const Adapter adapter{.z = forward.activation("z", {kRows, 2}), .columns = {.begin = 1}};
  forward.loss_of(add_adapters(b, base, std::array{adapter}, 2.0, "y"));
  const std::vector<std::string> backward = backward_of(forward.differentiated());
  EXPECT_THAT(
      std::vector<std::string>(backward.end() - 2, backward.end()),
      testing::ElementsAre("adapter_grad(y.grad -> z.grad)", "gelu_backward(u, y.grad -> u.grad)"));
}

}  // namespace
}  // namespace braid
