#include "ops/add_gated.h"

#include "support/add_gated_cases.h"

namespace braid {
namespace {

Tolerance rounded_once(DType dtype) {
  return {.absolute = 16 * rounding_error(wide(dtype)), .relative = 2 * rounding_error(dtype)};
}

TEST(AddGated, AddsEachRowTimesTheSigmoidOfItsGate) {
  for (const DType dtype : kFloatDtypes) {
    for (const GatedSizes& s : kAwkwardGatedSizes) {
      KernelCase kernel = add_gated_case(dtype, s);
      const auto a = kernel.values(0);
      const auto x = kernel.values(1);
      const auto z = kernel.values(2);
      kernel.run(2);
      std::vector<double> expected;
      for (size_t i = 0; i < x.size(); ++i) {
        expected.push_back(a[i] + x[i] / (1 + std::exp(-z[i / static_cast<size_t>(s.width)])));
      }
      expect_close(kernel.values(3), expected, rounded_once(dtype));
    }
  }
}

// The product is 193.5 * 2^-8, which bf16 would round to 194 before the addend makes it 193.25.
TEST(AddGated, RoundsOnce) {
  KernelCase kernel = add_gated_case(DType::kBF16, {1, 1});
  kernel.set(0, {-0x1.0p-10});
  kernel.set(1, {1.0 + 0x1.0p-7});
  kernel.set(2, {std::log(3.0)});
  kernel.run();
  EXPECT_EQ(kernel.values(3), std::vector<double>{193 * 0x1.0p-8});
}

TEST(AddGated, GatesThatAreShutOrOpenAreFinite) {
  for (const DType dtype : kFloatDtypes) {
    KernelCase forward = add_gated_case(dtype, {2, 1});
    KernelCase backward = add_gated_backward_case(dtype, {2, 1});
    forward.set_all(0, 0.25);
    forward.set_all(1, 0.5);
    forward.set(2, {-1000.0, 1000.0});
    backward.set(1, {-1000.0, 1000.0});
    backward.set_all(2, 0.5);
    forward.run();
    backward.run();
    EXPECT_EQ(forward.values(3), (std::vector<double>{0.25, 0.75}));
    EXPECT_EQ(backward.values(3), (std::vector<double>{0.0, 0.5}));
    EXPECT_EQ(backward.values(4), (std::vector<double>{0.0, 0.0}));
  }
}

TEST(AddGatedBackward, AgreesWithDifferences) {
  const GatedSizes s{4, 5};
  KernelCase backward = add_gated_backward_case(DType::kF64, s);
  backward.run();
  const auto probe = backward.values(2);
  const auto loss_of = [&](size_t operand) {
    return [&, operand](const std::vector<double>& values) {
      KernelCase forward = add_gated_case(DType::kF64, s);
      forward.set(1, backward.values(0));
      forward.set(2, backward.values(1));
      forward.set(operand, values);
      forward.run();
      return dot(forward.values(3), probe);
    };
  };
  expect_gradient(loss_of(1), backward.values(0), backward.values(3), "dx");
  expect_gradient(loss_of(2), backward.values(1), backward.values(4), "dz");
}

TEST(AddGatedBackward, OfFloatsIsLikeThatOfDoubles) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const GatedSizes& s : kAwkwardGatedSizes) {
      KernelCase kernel = add_gated_backward_case(dtype, s);
      KernelCase exact = add_gated_backward_case(DType::kF64, s);
      for (const size_t operand : {0, 1, 2}) {
        exact.set(operand, kernel.values(operand));
      }
      kernel.run(2);
      exact.run();
      expect_close(kernel.values(3), exact.values(3), rounded_once(dtype), "dx");
      expect_close(kernel.values(4), exact.values(4),
                   sum_tolerance(DType::kF32, static_cast<double>(s.width)), "dz");
    }
  }
}

TEST(AddGated, DoesNotDependOnTheNumberOfWorkers) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_same_for_any_workers([&] { return add_gated_case(dtype, {600, 301}); });
    expect_same_for_any_workers([&] { return add_gated_backward_case(dtype, {600, 301}); });
  }
}

}  // namespace
}  // namespace braid
