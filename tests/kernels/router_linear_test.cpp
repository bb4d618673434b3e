#include "ops/router.h"

#include "support/kernel_harness.h"
#include "support/thinned.h"

namespace braid {
namespace {

struct Sizes {
  int64_t rows;
  int64_t width;
  int64_t experts;
};
constexpr Sizes kProducts[] = {{1, 1, 1}, {1, 37, 8}, {5, 3, 1}, {33, 129, 6}, {19, 300, 64}};

std::string name_of(DType dtype, Sizes s) {
  return fmt::format("{} [{},{}] x [{},{}]", dtype_name(dtype), s.rows, s.width, s.experts,
                     s.width);
}

KernelCase linear_case(DType dtype, Sizes s, bool has_bias) {
  std::vector<OperandSpec> operands{read(dtype, {s.rows, s.width}),
                                    read(dtype, {s.experts, s.width})};
  if (has_bias) {
    operands.push_back(read(wide(dtype), {s.experts}));
  }
  operands.push_back(write(wide(dtype), {s.rows, s.experts}));
  return KernelCase({"router_linear",
                     to_attributes(RouterLinearAttributes{.bias = {.has_logit_bias = has_bias}}),
                     operands});
}

KernelCase dgrad_case(DType dtype, Sizes s, bool accumulate) {
  return KernelCase({"router_linear_dgrad",
                     to_attributes(RouterGradAttributes{.accumulate = accumulate}),
                     {read(wide(dtype), {s.rows, s.experts}), read(dtype, {s.experts, s.width}),
                      gradient(accumulate, dtype, {s.rows, s.width})}});
}

KernelCase wgrad_case(DType dtype, Sizes s, bool accumulate, bool has_bias) {
  std::vector<OperandSpec> operands{read(dtype, {s.rows, s.width}),
                                    read(wide(dtype), {s.rows, s.experts}),
                                    gradient(accumulate, wide(dtype), {s.experts, s.width})};
  if (has_bias) {
    operands.push_back(gradient(accumulate, wide(dtype), {s.experts}));
  }
  return KernelCase({"router_linear_wgrad",
                     to_attributes(RouterWgradAttributes{.accumulate = accumulate,
                                                         .bias = {.has_logit_bias = has_bias}}),
                     operands});
}

/// c[i,j] (+)= sum over k of a(i,k) b(k,j).
template <class A, class B>
std::vector<double> naive_product(int64_t m, int64_t n, int64_t k, const A& a, const B& b,
                                  std::vector<double> c) {
  c.resize(static_cast<size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        c[static_cast<size_t>(i * n + j)] += a(i, l) * b(l, j);
      }
    }
  }
  return c;
}

auto matrix(const std::vector<double>& values, int64_t width, bool transposed = false) {
  return [&values, width, transposed](int64_t i, int64_t j) {
    return values[static_cast<size_t>(transposed ? j * width + i : i * width + j)];
  };
}

/// A matrix whose rows are all `row`.
auto repeated(const std::vector<double>& row) {
  return [&row](int64_t, int64_t j) { return row[static_cast<size_t>(j)]; };
}

auto ones() {
  return [](int64_t, int64_t) { return 1.0; };
}

void check_logits(DType dtype, Sizes s, bool has_bias, int num_workers) {
  KernelCase linear = linear_case(dtype, s, has_bias);
  const auto x = linear.values(0);
  const auto w = linear.values(1);
  std::vector<double> expected;
  if (has_bias) {
    const auto bias = linear.values(2);
    expected = naive_product(s.rows, s.experts, 1, ones(), repeated(bias), {});
  }
  linear.run(num_workers);
  expect_close(linear.values(has_bias ? 3 : 2),
               naive_product(s.rows, s.experts, s.width, matrix(x, s.width),
                             matrix(w, s.width, true), expected),
               sum_tolerance(wide(dtype), static_cast<double>(s.width + 1)), name_of(dtype, s));
}

void check_dgrad(DType dtype, Sizes s, bool accumulate, int num_workers) {
  KernelCase dgrad = dgrad_case(dtype, s, accumulate);
  const auto d_logits = dgrad.values(0);
  const auto w = dgrad.values(1);
  const auto dx =
      naive_product(s.rows, s.width, s.experts, matrix(d_logits, s.experts), matrix(w, s.width),
                    accumulate ? dgrad.values(2) : std::vector<double>());
  dgrad.run(num_workers);
  expect_close(dgrad.values(2), dx, sum_tolerance(dtype, static_cast<double>(s.experts)),
               "dx " + name_of(dtype, s));
}

void check_wgrad(DType dtype, Sizes s, bool accumulate, bool has_bias, int num_workers) {
  KernelCase wgrad = wgrad_case(dtype, s, accumulate, has_bias);
  const auto x = wgrad.values(0);
  const auto d_logits = wgrad.values(1);
  const auto before = [&](size_t operand) {
    return accumulate ? wgrad.values(operand) : std::vector<double>();
  };
  const auto dw = naive_product(s.experts, s.width, s.rows, matrix(d_logits, s.experts, true),
                                matrix(x, s.width), before(2));
  std::vector<double> d_bias;
  if (has_bias) {
    d_bias = naive_product(1, s.experts, s.rows, ones(), matrix(d_logits, s.experts), before(3));
  }
  wgrad.run(num_workers);
  const Tolerance tolerance = sum_tolerance(wide(dtype), static_cast<double>(s.rows));
  expect_close(wgrad.values(2), dw, tolerance, "dw " + name_of(dtype, s));
  if (has_bias) {
    expect_close(wgrad.values(3), d_bias, tolerance, "d_logit_bias " + name_of(dtype, s));
  }
}

// Logits of bf16 data have the precision of f32.
TEST(RouterLinear, EqualsNaiveProducts) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kProducts) {
      for (const bool is_second : {false, true}) {
        const int num_workers = is_second ? 2 : 1;
        check_logits(dtype, s, is_second, num_workers);
        check_dgrad(dtype, s, is_second, num_workers);
        check_wgrad(dtype, s, false, is_second, num_workers);
        check_wgrad(dtype, s, true, !is_second, num_workers);
      }
    }
  }
}

// In bf16 these logits would be 1.
TEST(RouterLinear, BiasesAreNotRounded) {
  KernelCase linear = linear_case(DType::kBF16, {3, 5, 4}, true);
  linear.set_all(0, 0.0);
  linear.set_all(2, 1.0 + 0x1.0p-20);
  linear.run(1);
  EXPECT_EQ(linear.values(3), std::vector<double>(12, 1.0 + 0x1.0p-20));
}

TEST(RouterLinear, WorkersDoNotChangeResults) {
  const Sizes s{400, 384, 48};
  for (const DType dtype : thinned<DType>({DType::kBF16, DType::kF32}, 2)) {
    expect_same_for_any_workers([&] { return dgrad_case(dtype, s, true); });
    expect_same_for_any_workers([&] { return wgrad_case(dtype, s, true, true); });
  }
}

}  // namespace
}  // namespace braid
