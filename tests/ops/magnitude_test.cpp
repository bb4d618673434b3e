#include "ops/magnitude.h"

#include "ops/attributes.h"
#include "ops/forward_graph.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

OpSpec squares_spec() {
  return {"adapted_squares",
          to_attributes(AdaptedSquaresAttributes{{.scale = 2.0, .begin = 0, .second_begin = 5}}),
          {read(kBF16, {8, 6}), read(kBF16, {4, 6}), read(kBF16, {3, 2}), read(kBF16, {2, 2}),
           write(kF32, {2, 8})}};
}

OpSpec apply_spec() {
  return {"apply_magnitudes",
          to_attributes(ApplyMagnitudesAttributes{.has_bias = true}),
          {read(kBF16, {4, 8}), read(kBF16, {8}), read(kF32, {2, 8}), read(kBF16, {8}),
           write(kBF16, {4, 8})}};
}

TEST(MagnitudeCheck, RefusesWhatDoesNotFit) {
  check_spec(squares_spec());
  check_spec(apply_spec());
  expect_refused(with_operand(squares_spec(), 3, read(kBF16, {4, 2})),
                 "the rows of b must be rows of w");
  expect_refused(with_operand(squares_spec(), 2, read(kBF16, {3, 4})),
                 "with an equal share of the rows of a as columns");
  expect_refused(with_operand(squares_spec(), 1, read(kBF16, {4, 5})),
                 "a must be [R,K] of w's dtype and K");
  expect_refused(with_operand(apply_spec(), 1, read(kBF16, {7})), "operand change");
  OpSpec without_bias = apply_spec();
  without_bias.operands.erase(without_bias.operands.begin() + 3);
  without_bias.attributes =
      to_attributes(ApplyMagnitudesAttributes{.has_bias = false, .adds_bias = false});
  expect_refused(without_bias, "there is no bias to leave out");
}

// Rows without an adapter are not read: 5 of 8 rows of w.
TEST(MagnitudeCost, ReadsOnlyRowsWithAdapters) {
  expect_cost(squares_spec(), {.flops = 5 * 6 * (2 * 2 + 5),
                               .bytes_read = 2 * (5 * 6 + 4 * 6 + 5 * 2),
                               .bytes_written = 4 * 16});
}

// The lengths that rows have are constants: nothing leads back to w, a and b.
TEST(MagnitudeBackward, GivesGradientsToValuesAndChanges) {
  Forward forward(kF32);
  GraphBuilder& b = forward.builder();
  const std::array rows{Adapter{.z = forward.param("b", {4, 2}), .columns = {}}};
  const ValueId squares = adapted_squares(
      b, {.weight = forward.param("w", {4, 5}), .a = forward.param("a", {2, 5}), .adapters = rows},
      "squares");
  EXPECT_EQ(forward.graph().value(squares).kind, ValueKind::kOfWeights);
  forward.loss_of(apply_magnitudes(b, forward.activation("v", {kRows, 4}),
                                   {.change = forward.param("change", {4}), .squares = squares},
                                   "y"));
  const std::vector<std::string> backward = backward_of(forward.differentiated());
  EXPECT_EQ(backward.back(),
            "apply_magnitudes_backward(v, change, squares, y.grad -> v.grad, +change.main_grad)");
}

}  // namespace
}  // namespace braid
