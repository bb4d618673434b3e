#include "ops/linear.h"

#include <limits>

#include "support/kernel_harness.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows;
  int64_t in;
  int64_t out;
};

constexpr Sizes kAwkward[] = {{1, 1, 1}, {1, 7, 3}, {5, 1, 2}, {13, 31, 17}, {67, 48, 101}};

KernelCase linear_case(DType dtype, Sizes s, bool has_bias) {
  std::vector<OperandSpec> operands = {read(dtype, {s.rows, s.in}), read(dtype, {s.out, s.in})};
  if (has_bias) {
    operands.push_back(read(dtype, {s.out}));
  }
  operands.push_back(write(dtype, {s.rows, s.out}));
  return KernelCase(
      {"linear", to_attributes(LinearAttributes{.has_bias = has_bias}), std::move(operands)});
}

KernelCase dgrad_case(DType dtype, Sizes s, bool accumulate) {
  return KernelCase({"linear_dgrad",
                     to_attributes(LinearDgradAttributes{.accumulate = accumulate}),
                     {read(dtype, {s.rows, s.out}), read(dtype, {s.out, s.in}),
                      gradient(accumulate, dtype, {s.rows, s.in})}});
}

KernelCase wgrad_case(DType dtype, Sizes s, bool has_bias, bool accumulate) {
  std::vector<OperandSpec> operands = {read(dtype, {s.rows, s.in}), read(dtype, {s.rows, s.out}),
                                       gradient(accumulate, wide(dtype), {s.out, s.in})};
  if (has_bias) {
    operands.push_back(gradient(accumulate, wide(dtype), {s.out}));
  }
  const LinearWgradAttributes attributes{.has_bias = has_bias, .accumulate = accumulate};
  return KernelCase({"linear_wgrad", to_attributes(attributes), std::move(operands)});
}

std::vector<double> zeros(int64_t count) {
  return std::vector<double>(static_cast<size_t>(count));
}

/// to[r][c] += sum over i of a(r, i) b(i, c).
template <class A, class B>
std::vector<double> add_product(std::vector<double> to, int64_t rows, int64_t columns,
                                int64_t inner, A a, B b) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t i = 0; i < inner; ++i) {
        to[static_cast<size_t>(r * columns + c)] += a(r, i) * b(i, c);
      }
    }
  }
  return to;
}

auto element(const std::vector<double>& matrix, int64_t columns) {
  return [&matrix, columns](int64_t r, int64_t c) {
    return matrix[static_cast<size_t>(r * columns + c)];
  };
}

auto transposed(const std::vector<double>& matrix, int64_t columns) {
  return [&matrix, columns](int64_t r, int64_t c) {
    return matrix[static_cast<size_t>(c * columns + r)];
  };
}

void check_linear(DType dtype, Sizes s, bool has_bias, int num_workers) {
  KernelCase kernel = linear_case(dtype, s, has_bias);
  const auto x = kernel.values(0);
  const auto w = kernel.values(1);
  std::vector<double> expected = zeros(s.rows * s.out);
  if (has_bias) {
    const auto bias = kernel.values(2);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = bias[i % bias.size()];
    }
  }
  expected = add_product(expected, s.rows, s.out, s.in, element(x, s.in), transposed(w, s.in));
  kernel.run(num_workers);
  expect_close(kernel.values(has_bias ? 3 : 2), expected,
               sum_tolerance(dtype, static_cast<double>(s.in) + 1));
}

TEST(Linear, EqualsTheNaiveProduct) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kAwkward) {
      check_linear(dtype, s, false, 1);
      check_linear(dtype, s, true, 1);
      check_linear(dtype, s, true, 2);
    }
    check_linear(dtype, {523, 130, 97}, true, 3);
  }
}

// A bias left out must not even be read.
TEST(Linear, LeavesABiasOutOnRequest) {
  for (const DType dtype : kFloatDtypes) {
    const Sizes s{.rows = 13, .in = 31, .out = 17};
    KernelCase plain = linear_case(dtype, s, false);
    KernelCase kernel({"linear",
                       to_attributes(LinearAttributes{.has_bias = true, .adds_bias = false}),
                       {read(dtype, {s.rows, s.in}), read(dtype, {s.out, s.in}),
                        read(dtype, {s.out}), write(dtype, {s.rows, s.out})}});
    kernel.set(0, plain.values(0));
    kernel.set(1, plain.values(1));
    kernel.set_all(2, std::numeric_limits<double>::quiet_NaN());
    plain.run();
    kernel.run();
    EXPECT_EQ(kernel.values(3), plain.values(2));
  }
}

TEST(Linear, KeepsNanAndInfinityToTheirRow) {
  const Sizes s{.rows = 9, .in = 33, .out = 21};
  KernelCase kernel = linear_case(DType::kF32, s, true);
  auto x = kernel.values(0);
  x[static_cast<size_t>(4 * s.in + 7)] = std::numeric_limits<double>::quiet_NaN();
  x[static_cast<size_t>(6 * s.in + 7)] = std::numeric_limits<double>::infinity();
  kernel.set(0, x);
  kernel.run();
  const auto y = kernel.values(3);
  for (size_t i = 0; i < y.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / s.out;
    EXPECT_EQ(std::isnan(y[i]), row == 4) << "row " << row;
    EXPECT_EQ(std::isinf(y[i]), row == 6) << "row " << row;
  }
}

void check_dgrad(DType dtype, Sizes s, bool accumulate, int num_workers) {
  KernelCase kernel = dgrad_case(dtype, s, accumulate);
  const auto dy = kernel.values(0);
  const auto w = kernel.values(1);
  const auto expected = add_product(accumulate ? kernel.values(2) : zeros(s.rows * s.in), s.rows,
                                    s.in, s.out, element(dy, s.out), element(w, s.in));
  kernel.run(num_workers);
  expect_close(kernel.values(2), expected, sum_tolerance(dtype, static_cast<double>(s.out) + 1));
}

TEST(LinearDgrad, EqualsTheNaiveProduct) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kAwkward) {
      check_dgrad(dtype, s, false, 1);
      check_dgrad(dtype, s, true, 2);
    }
    check_dgrad(dtype, {401, 97, 130}, false, 3);
  }
}

void check_wgrad(DType dtype, Sizes s, bool accumulate, int num_workers) {
  KernelCase kernel = wgrad_case(dtype, s, true, accumulate);
  const auto x = kernel.values(0);
  const auto dy = kernel.values(1);
  const auto dw = add_product(accumulate ? kernel.values(2) : zeros(s.out * s.in), s.out, s.in,
                              s.rows, transposed(dy, s.out), element(x, s.in));
  const auto one = [](int64_t, int64_t) { return 1.0; };
  const auto db = add_product(accumulate ? kernel.values(3) : zeros(s.out), s.out, 1, s.rows,
                              transposed(dy, s.out), one);
  kernel.run(num_workers);
  const Tolerance tolerance = sum_tolerance(wide(dtype), static_cast<double>(s.rows) + 1);
  expect_close(kernel.values(2), dw, tolerance, "dw");
  expect_close(kernel.values(3), db, tolerance, "db");
}

TEST(LinearWgrad, EqualsTheNaiveProductAndColumnSums) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kAwkward) {
      check_wgrad(dtype, s, false, 1);
      check_wgrad(dtype, s, true, 2);
    }
    check_wgrad(dtype, {2077, 37, 53}, true, 3);
  }
}

TEST(LinearWgrad, WorksWithoutBias) {
  const Sizes s{.rows = 29, .in = 19, .out = 23};
  KernelCase with = wgrad_case(DType::kF32, s, true, false);
  KernelCase without = wgrad_case(DType::kF32, s, false, false);
  with.run();
  without.run();
  EXPECT_EQ(without.values(2), with.values(2));
}

// Integers, so that no order of additions rounds: rows of the whole gradient, and all of the
// bias's.
TEST(LinearWgrad, SlicesOfFeaturesAreRowsOfTheWhole) {
  const Sizes s{.rows = 37, .in = 19, .out = 53};
  KernelCase whole = wgrad_case(DType::kF32, s, true, true);
  TestRandom random(5);
  for (size_t operand = 0; operand < 4; ++operand) {
    std::vector<double> values(static_cast<size_t>(whole.num_elems(operand)));
    std::ranges::generate(values, [&] { return static_cast<double>(random.below(17)) - 8; });
    whole.set(operand, values);
  }
  for (const FeatureSlice& slice : {FeatureSlice{0, 16}, FeatureSlice{16, 53}}) {
    const int64_t features = slice.end_feature - slice.first_feature;
    KernelCase piece({"linear_wgrad",
                      to_attributes(LinearWgradAttributes{.has_bias = true, .features = slice}),
                      {whole.spec().operands[0], whole.spec().operands[1],
                       read_write(DType::kF32, {features, s.in}), whole.spec().operands[3]}});
    const auto begin = static_cast<ptrdiff_t>(slice.first_feature * s.in);
    const auto end = static_cast<ptrdiff_t>(slice.end_feature * s.in);
    const auto rows_of = [&](const std::vector<double>& dw) {
      return std::vector<double>(dw.begin() + begin, dw.begin() + end);
    };
    for (const size_t operand : {0, 1, 3}) {
      piece.set(operand, whole.values(operand));
    }
    piece.set(2, rows_of(whole.values(2)));
    KernelCase expected = wgrad_case(DType::kF32, s, true, true);
    for (size_t operand = 0; operand < 4; ++operand) {
      expected.set(operand, whole.values(operand));
    }
    piece.run(2);
    expected.run();
    EXPECT_EQ(piece.values(2), rows_of(expected.values(2)));
    EXPECT_EQ(piece.values(3), expected.values(3));
  }
}

// Splits that depend on the number of workers would show in the bias sums; the products are
// OpenBLAS's, whose order of summation per element depends on the inner dimension only.
TEST(Linear, DoesNotDependOnTheNumberOfWorkers) {
  const Sizes s{.rows = 1024, .in = 160, .out = 352};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_same_for_any_workers([&] { return linear_case(dtype, s, true); });
    expect_same_for_any_workers([&] { return dgrad_case(dtype, s, false); });
    expect_same_for_any_workers([&] { return wgrad_case(dtype, s, true, true); });
  }
}

TEST(Linear, GradientsAgreeWithDifferences) {
  const Sizes s{.rows = 3, .in = 5, .out = 7};
  KernelCase forward = linear_case(DType::kF64, s, true);
  const auto probe = TestRandom(9).uniforms(s.rows * s.out, -1, 1);
  const auto loss_of = [&](size_t operand) {
    return [&, operand](const std::vector<double>& values) {
      KernelCase changed = linear_case(DType::kF64, s, true);
      changed.set(operand, values);
      changed.run();
      return dot(changed.values(3), probe);
    };
  };
  KernelCase dgrad = dgrad_case(DType::kF64, s, false);
  dgrad.set(0, probe);
  dgrad.set(1, forward.values(1));
  dgrad.run();
  expect_gradient(loss_of(0), forward.values(0), dgrad.values(2), "dx");
  KernelCase wgrad = wgrad_case(DType::kF64, s, true, false);
  wgrad.set(0, forward.values(0));
  wgrad.set(1, probe);
  wgrad.run();
  expect_gradient(loss_of(1), forward.values(1), wgrad.values(2), "dw");
  expect_gradient(loss_of(2), forward.values(2), wgrad.values(3), "db");
}

}  // namespace
}  // namespace braid
