#include "ops/activation.h"

#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Sizes {
  int64_t rows;
  int64_t width;
};

constexpr Sizes kAwkward[] = {{1, 1}, {1, 5}, {3, 16}, {7, 67}, {2, 1031}};
constexpr Sizes kSplitSizes = {257, 211};

KernelCase swiglu_case(DType dtype, Sizes s) {
  return KernelCase(
      {"swiglu", {}, {read(dtype, {s.rows, 2 * s.width}), write(dtype, {s.rows, s.width})}});
}

KernelCase swiglu_backward_case(DType dtype, Sizes s) {
  return KernelCase({"swiglu_backward",
                     {},
                     {read(dtype, {s.rows, 2 * s.width}), read(dtype, {s.rows, s.width}),
                      write(dtype, {s.rows, 2 * s.width})}});
}

KernelCase gelu_case(DType dtype, Sizes s) {
  return KernelCase(
      {"gelu", {}, {read(dtype, {s.rows, s.width}), write(dtype, {s.rows, s.width})}});
}

KernelCase relu2_case(DType dtype, Sizes s) {
  return KernelCase(
      {"relu2", {}, {read(dtype, {s.rows, s.width}), write(dtype, {s.rows, s.width})}});
}

KernelCase relu2_backward_case(DType dtype, Sizes s) {
  return KernelCase({"relu2_backward",
                     {},
                     {read(dtype, {s.rows, s.width}), read(dtype, {s.rows, s.width}),
                      write(dtype, {s.rows, s.width})}});
}

KernelCase gelu_backward_case(DType dtype, Sizes s) {
  return KernelCase({"gelu_backward",
                     {},
                     {read(dtype, {s.rows, s.width}), read(dtype, {s.rows, s.width}),
                      write(dtype, {s.rows, s.width})}});
}

/// Values in which activations saturate as well as bend.
void spread(KernelCase& kernel, size_t operand, double limit) {
  kernel.set(operand, TestRandom(5).uniforms(kernel.num_elems(operand), -limit, limit));
}

double silu(double x) {
  return x / (1 + std::exp(-x));
}

double gelu(double x) {
  const double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(u));
}

// A handful of operations, exp to 2 units: 8 half units each leave room for 4 roundings. Below 1e-6
// of the largest input the naive tanh form itself cancels.
Tolerance activation_tolerance(DType dtype) {
  return {.absolute = 16 * rounding_error(wide(dtype)), .relative = 16 * rounding_error(dtype)};
}

TEST(Swiglu, IsSiluTimesUp) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kAwkward) {
      KernelCase kernel = swiglu_case(dtype, s);
      spread(kernel, 0, 20);
      const auto x = kernel.values(0);
      kernel.run(2);
      std::vector<double> expected;
      for (size_t pair = 0; pair < x.size(); pair += 2) {
        expected.push_back(silu(x[pair]) * x[pair + 1]);
      }
      expect_close(kernel.values(1), expected, activation_tolerance(dtype));
    }
  }
}

TEST(Swiglu, KeepsNanAndInfinityInPlace) {
  KernelCase kernel = swiglu_case(DType::kF32, {1, 4});
  kernel.set(0, {kNan, 1.0, kInfinity, 2.0, 0.0, kNan, -200.0, 3.0});
  kernel.run();
  const auto y = kernel.values(1);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], kInfinity);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0.0);
}

TEST(SwigluBackward, AgreesWithDifferences) {
  const Sizes s{.rows = 3, .width = 19};
  KernelCase backward = swiglu_backward_case(DType::kF64, s);
  spread(backward, 0, 4);
  backward.run();
  const auto probe = backward.values(1);
  const auto loss = [&](const std::vector<double>& values) {
    KernelCase forward = swiglu_case(DType::kF64, s);
    forward.set(0, values);
    forward.run();
    return dot(forward.values(1), probe);
  };
  expect_gradient(loss, backward.values(0), backward.values(2), "d_gate_up");
}

/// The float and bf16 kernels against the double one, which differences have checked.
void expect_like_double(const std::function<KernelCase(DType, Sizes)>& make, size_t result,
                        double limit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Sizes s : kAwkward) {
      KernelCase kernel = make(dtype, s);
      KernelCase exact = make(DType::kF64, s);
      spread(kernel, 0, limit);
      exact.set(0, kernel.values(0));
      exact.set(1, kernel.values(1));
      kernel.run(2);
      exact.run();
      // Slopes multiply a rounded 1 - sigmoid by x: an absolute error of up to `limit` units.
      const Tolerance tolerance{.absolute = 8 * limit * rounding_error(DType::kF32),
                                .relative = 16 * rounding_error(dtype)};
      expect_close(kernel.values(result), exact.values(result), tolerance, "result");
    }
  }
}

TEST(SwigluBackward, InFloatAndBfloat16IsLikeInDouble) {
  expect_like_double(swiglu_backward_case, 2, 20);
}

TEST(Gelu, IsTheTanhApproximation) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kAwkward) {
      KernelCase kernel = gelu_case(dtype, s);
      spread(kernel, 0, 8);
      std::vector<double> expected = kernel.values(0);
      kernel.run(2);
      std::transform(expected.begin(), expected.end(), expected.begin(), gelu);
      expect_close(kernel.values(1), expected, activation_tolerance(dtype));
    }
  }
}

TEST(Gelu, KeepsNanAndSaturates) {
  KernelCase kernel = gelu_case(DType::kF32, {1, 5});
  kernel.set(0, {kNan, kInfinity, 1e10, -1e10, -0.0});
  kernel.run();
  const auto y = kernel.values(1);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], kInfinity);
  EXPECT_EQ(y[2], 1e10);
  EXPECT_EQ(y[3], 0.0);
  EXPECT_TRUE(y[4] == 0.0 && std::signbit(y[4]));
}

TEST(GeluBackward, AgreesWithDifferences) {
  const Sizes s{.rows = 3, .width = 23};
  KernelCase backward = gelu_backward_case(DType::kF64, s);
  spread(backward, 0, 4);
  backward.run();
  const auto probe = backward.values(1);
  const auto loss = [&](const std::vector<double>& values) {
    KernelCase forward = gelu_case(DType::kF64, s);
    forward.set(0, values);
    forward.run();
    return dot(forward.values(1), probe);
  };
  expect_gradient(loss, backward.values(0), backward.values(2), "dx");
}

TEST(GeluBackward, InFloatAndBfloat16IsLikeInDouble) {
  expect_like_double(gelu_backward_case, 2, 8);
}

/// The same operands for the other gated function.
KernelCase geglu_case(DType dtype, Sizes s) {
  OpSpec spec = swiglu_case(dtype, s).spec();
  spec.op = "geglu";
  return KernelCase(std::move(spec));
}

KernelCase geglu_backward_case(DType dtype, Sizes s) {
  OpSpec spec = swiglu_backward_case(dtype, s).spec();
  spec.op = "geglu_backward";
  return KernelCase(std::move(spec));
}

TEST(Geglu, IsGeluTimesUp) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kAwkward) {
      KernelCase kernel = geglu_case(dtype, s);
      spread(kernel, 0, 8);
      const auto x = kernel.values(0);
      kernel.run(2);
      std::vector<double> expected;
      for (size_t pair = 0; pair < x.size(); pair += 2) {
        expected.push_back(gelu(x[pair]) * x[pair + 1]);
      }
      Tolerance tolerance = activation_tolerance(dtype);
      tolerance.absolute *= 8;  // `up` times the error of gelu
      expect_close(kernel.values(1), expected, tolerance);
    }
  }
}

TEST(GegluBackward, AgreesWithDifferences) {
  const Sizes s{.rows = 3, .width = 19};
  KernelCase backward = geglu_backward_case(DType::kF64, s);
  spread(backward, 0, 4);
  backward.run();
  const auto probe = backward.values(1);
  const auto loss = [&](const std::vector<double>& values) {
    KernelCase forward = geglu_case(DType::kF64, s);
    forward.set(0, values);
    forward.run();
    return dot(forward.values(1), probe);
  };
  expect_gradient(loss, backward.values(0), backward.values(2), "d_gate_up");
}

TEST(GegluBackward, InFloatAndBfloat16IsLikeInDouble) {
  expect_like_double(geglu_backward_case, 2, 8);
}

TEST(Activation, DoesNotDependOnTheNumberOfWorkers) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_same_for_any_workers([&] { return geglu_case(dtype, kSplitSizes); });
    expect_same_for_any_workers([&] { return geglu_backward_case(dtype, kSplitSizes); });
    expect_same_for_any_workers([&] { return swiglu_case(dtype, kSplitSizes); });
    expect_same_for_any_workers([&] { return swiglu_backward_case(dtype, kSplitSizes); });
    expect_same_for_any_workers([&] { return gelu_case(dtype, kSplitSizes); });
    expect_same_for_any_workers([&] { return gelu_backward_case(dtype, kSplitSizes); });
  }
}

// One product, and one rounding.
TEST(Relu2, IsTheSquareOfPositiveParts) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kAwkward) {
      KernelCase kernel = relu2_case(dtype, s);
      KernelCase backward = relu2_backward_case(dtype, s);
      spread(kernel, 0, 8);
      spread(backward, 0, 8);
      std::vector<double> y = kernel.values(0);
      std::vector<double> dx = backward.values(1);
      for (size_t i = 0; i < y.size(); ++i) {
        const double positive = std::max(y[i], 0.0);
        y[i] = positive * positive;
        dx[i] *= 2 * positive;
      }
      kernel.run(2);
      backward.run(2);
      const Tolerance tolerance{.relative = 2.01 * rounding_error(dtype)};
      expect_close(kernel.values(1), y, tolerance);
      expect_close(backward.values(2), dx, tolerance);
    }
  }
}

TEST(Relu2, KeepsNan) {
  KernelCase kernel = relu2_case(DType::kF32, {1, 3});
  kernel.set(0, {kNan, -kInfinity, kInfinity});
  kernel.run();
  const auto y = kernel.values(1);
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[1], 0.0);
  EXPECT_EQ(y[2], kInfinity);
}

}  // namespace
}  // namespace braid
