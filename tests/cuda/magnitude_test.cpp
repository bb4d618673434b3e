#include "ops/magnitude.h"

#include "support/cuda_kernel_checks.h"
#include "support/magnitude_cases.h"

namespace braid {
namespace {

using MagnitudeCudaTest = CudaKernelTest;

TEST_F(MagnitudeCudaTest, SquaresEqualTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const SquaresSizes& s : kAwkwardSquares) {
      const std::string name =
          fmt::format("{} M={} K={}", dtype_name(dtype), s.adapters.width, s.in);
      expect_equals_cpu(adapted_squares_case(dtype, s), context(), rounded_once(1e-6, 2e-5), name);
    }
  }
}

TEST_F(MagnitudeCudaTest, MagnitudesEqualTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const MagnitudeSizes& s : kAwkwardMagnitudes) {
      const std::string name = fmt::format("{} N={} M={}", dtype_name(dtype), s.rows, s.width);
      for (const ApplyMagnitudesAttributes& a :
           {ApplyMagnitudesAttributes{}, ApplyMagnitudesAttributes{.has_bias = true},
            ApplyMagnitudesAttributes{.has_bias = true, .adds_bias = false}}) {
        expect_equals_cpu(apply_magnitudes_case(dtype, s, a), context(), rounded_once(2e-6, 1e-5),
                          name);
      }
      for (const bool accumulate : {false, true}) {
        expect_equals_cpu(apply_magnitudes_backward_case(dtype, s, accumulate), context(),
                          rounded_once(1e-4, 1e-5), name);
      }
    }
  }
}

TEST_F(MagnitudeCudaTest, AreRepeatable) {
  for (const DType dtype : kCudaDtypes) {
    expect_repeatable([&] { return adapted_squares_case(dtype, kAwkwardSquares[4]); }, context());
    for (const MagnitudeSizes& s : {MagnitudeSizes{257, 264}, {300, 70}}) {
      expect_repeatable([&] { return apply_magnitudes_case(dtype, s); }, context());
      expect_repeatable([&] { return apply_magnitudes_backward_case(dtype, s, true); }, context());
    }
  }
}

// A model starts as its base: without a change all gains are exactly 1.
TEST_F(MagnitudeCudaTest, LeavesTheBaseAsItIs) {
  const SquaresSizes s{{0, 23, {0}, {23}}, 700, 3};
  for (const DType dtype : kCudaDtypes) {
    KernelCase squares = adapted_squares_case(dtype, s);
    squares.set_all(2, 0.0);
    run_on_cuda(squares, context());
    KernelCase apply = apply_magnitudes_case(dtype, {5, 23});
    apply.set(2, squares.values(3));
    apply.set_all(1, 0.0);
    run_on_cuda(apply, context());
    EXPECT_EQ(apply.bytes(3), apply.bytes(0));
  }
}

}  // namespace
}  // namespace braid
