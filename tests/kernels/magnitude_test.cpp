#include "ops/magnitude.h"

#include "support/magnitude_cases.h"

namespace braid {
namespace {

Tolerance one_rounding(DType dtype) {
  return {.absolute = 8 * rounding_error(wide(dtype)), .relative = 2 * rounding_error(dtype)};
}

/// By the definition in the op's header, element by element.
std::vector<double> expected_squares(const KernelCase& kernel, const SquaresSizes& s) {
  const AdapterSizes& of = s.adapters;
  const std::vector<double> w = kernel.values(0);
  const std::vector<double> a = kernel.values(1);
  std::vector<double> squares(static_cast<size_t>(2 * of.width));
  for (size_t i = 0; i < of.sizes.size(); ++i) {
    const std::vector<double> b = kernel.values(i + 2);
    for (int64_t j = 0; j < of.sizes[i]; ++j) {
      const int64_t row = of.begins[i] + j * of.step;
      for (int64_t c = 0; c < s.in; ++c) {
        double v = w[static_cast<size_t>(row * s.in + c)];
        squares[static_cast<size_t>(row)] += v * v;
        for (int64_t r = 0; r < s.rank; ++r) {
          const int64_t a_row = static_cast<int64_t>(i) * s.rank + r;
          v += kAdapterScale * b[static_cast<size_t>(j * s.rank + r)] *
               a[static_cast<size_t>(a_row * s.in + c)];
        }
        squares[static_cast<size_t>(of.width + row)] += v * v;
      }
    }
  }
  return squares;
}

TEST(AdaptedSquares, AddsUpSquaresOfRowsWithAdapters) {
  for (const DType dtype : kFloatDtypes) {
    for (const SquaresSizes& s : kAwkwardSquares) {
      KernelCase kernel = adapted_squares_case(dtype, s);
      const std::vector<double> expected = expected_squares(kernel, s);
      kernel.run(2);
      expect_close(kernel.values(s.adapters.sizes.size() + 2), expected,
                   {.absolute = 1e-12, .relative = 200 * rounding_error(wide(dtype))});
    }
  }
}

// So a model starts as its base, bit by bit.
TEST(AdaptedSquares, AreTheSameBitsTwiceWithoutAChange) {
  const SquaresSizes s{{0, 23, {0}, {23}}, 700, 3};
  for (const DType dtype : kFloatDtypes) {
    KernelCase kernel = adapted_squares_case(dtype, s);
    kernel.set_all(2, 0.0);
    kernel.run();
    const std::vector<double> squares = kernel.values(3);
    EXPECT_TRUE(std::equal(squares.begin(), squares.begin() + 23, squares.begin() + 23));
    EXPECT_GT(squares[7], 0.0);
    KernelCase apply = apply_magnitudes_case(dtype, {5, 23});
    apply.set(2, squares);
    apply.set_all(1, 0.0);
    apply.run();
    EXPECT_EQ(apply.bytes(3), apply.bytes(0));
  }
}

TEST(ApplyMagnitudes, ScalesFeaturesAndAddsTheBias) {
  for (const DType dtype : kFloatDtypes) {
    for (const MagnitudeSizes& s : kAwkwardMagnitudes) {
      for (const ApplyMagnitudesAttributes& a :
           {ApplyMagnitudesAttributes{}, ApplyMagnitudesAttributes{.has_bias = true},
            ApplyMagnitudesAttributes{.has_bias = true, .adds_bias = false}}) {
        KernelCase kernel = apply_magnitudes_case(dtype, s, a);
        const std::vector<double> change = kernel.values(1);
        const std::vector<double> squares = kernel.values(2);
        std::vector<double> expected = kernel.values(0);
        for (size_t i = 0; i < expected.size(); ++i) {
          const size_t c = i % static_cast<size_t>(s.width);
          const double adapted = squares[static_cast<size_t>(s.width) + c];
          expected[i] *=
              adapted > 0 ? (std::sqrt(squares[c]) + change[c]) / std::sqrt(adapted) : 1.0;
          expected[i] += a.has_bias && a.adds_bias ? kernel.values(3)[c] : 0.0;
        }
        kernel.run(2);
        expect_close(kernel.values(a.has_bias ? 4 : 3), expected, one_rounding(dtype));
      }
    }
  }
}

// The lengths that rows have are constants here, as in peft.
TEST(ApplyMagnitudesBackward, AgreesWithDifferences) {
  for (const MagnitudeSizes& s : {MagnitudeSizes{1, 1}, {5, 7}, {33, 23}}) {
    KernelCase backward = apply_magnitudes_backward_case(DType::kF64, s, false);
    backward.run(2);
    const std::vector<double> probe = backward.values(3);
    for (const size_t operand : {0u, 1u}) {
      const auto loss = [&](const std::vector<double>& x) {
        KernelCase forward = apply_magnitudes_case(DType::kF64, s);
        forward.set(operand, x);
        forward.run();
        return dot(forward.values(3), probe);
      };
      expect_gradient(loss, backward.values(operand), backward.values(operand + 4),
                      operand == 0 ? "dv" : "dchange");
    }
  }
}

TEST(ApplyMagnitudesBackward, AddsToTheGradient) {
  for (const DType dtype : kFloatDtypes) {
    for (const MagnitudeSizes& s : kAwkwardMagnitudes) {
      KernelCase added = apply_magnitudes_backward_case(dtype, s, true);
      KernelCase alone = apply_magnitudes_backward_case(dtype, s, false);
      const std::vector<double> before = added.values(5);
      added.run(2);
      alone.run(2);
      EXPECT_EQ(added.bytes(4), alone.bytes(4));
      std::vector<double> expected = alone.values(5);
      for (size_t c = 0; c < expected.size(); ++c) {
        expected[c] += before[c];
      }
      expect_close(added.values(5), expected, sum_tolerance(wide(dtype), 300));
    }
  }
}

TEST(Magnitudes, DoNotDependOnTheNumberOfWorkers) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_same_for_any_workers([&] {
      return adapted_squares_case(dtype, {{0, 300, {0, 1}, {150, 150}, 2}, 600, 4});
    });
    expect_same_for_any_workers([&] { return apply_magnitudes_case(dtype, {600, 302}); });
    expect_same_for_any_workers([&] {
      return apply_magnitudes_backward_case(dtype, {600, 302}, false);
    });
  }
}

}  // namespace
}  // namespace braid
