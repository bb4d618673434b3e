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

KernelCase linear_case(DType dtype, Sizes s) {
  return KernelCase({"router_linear",
                     {},
                     {read(dtype, {s.rows, s.width}), read(dtype, {s.experts, s.width}),
                      write(wide(dtype), {s.rows, s.experts})}});
}

KernelCase dgrad_case(DType dtype, Sizes s, bool accumulate) {
  return KernelCase({"router_linear_dgrad",
                     to_attributes(RouterGradAttributes{.accumulate = accumulate}),
                     {read(wide(dtype), {s.rows, s.experts}), read(dtype, {s.experts, s.width}),
                      gradient(accumulate, dtype, {s.rows, s.width})}});
}

KernelCase wgrad_case(DType dtype, Sizes s, bool accumulate) {
  return KernelCase({"router_linear_wgrad",
                     to_attributes(RouterGradAttributes{.accumulate = accumulate}),
                     {read(dtype, {s.rows, s.width}), read(wide(dtype), {s.rows, s.experts}),
                      gradient(accumulate, wide(dtype), {s.experts, s.width})}});
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

void check_products(DType dtype, Sizes s, bool accumulate, int num_workers) {
  KernelCase linear = linear_case(dtype, s);
  const auto x = linear.values(0);
  const auto w = linear.values(1);
  linear.run(num_workers);
  expect_close(
      linear.values(2),
      naive_product(s.rows, s.experts, s.width, matrix(x, s.width), matrix(w, s.width, true), {}),
      sum_tolerance(wide(dtype), static_cast<double>(s.width)), name_of(dtype, s));

  KernelCase dgrad = dgrad_case(dtype, s, accumulate);
  const auto d_logits = dgrad.values(0);
  dgrad.set(1, w);
  const auto dx =
      naive_product(s.rows, s.width, s.experts, matrix(d_logits, s.experts), matrix(w, s.width),
                    accumulate ? dgrad.values(2) : std::vector<double>());
  dgrad.run(num_workers);
  expect_close(dgrad.values(2), dx, sum_tolerance(dtype, static_cast<double>(s.experts)),
               "dx " + name_of(dtype, s));

  KernelCase wgrad = wgrad_case(dtype, s, accumulate);
  wgrad.set(0, x);
  wgrad.set(1, d_logits);
  const auto dw =
      naive_product(s.experts, s.width, s.rows, matrix(d_logits, s.experts, true),
                    matrix(x, s.width), accumulate ? wgrad.values(2) : std::vector<double>());
  wgrad.run(num_workers);
  expect_close(wgrad.values(2), dw, sum_tolerance(wide(dtype), static_cast<double>(s.rows)),
               "dw " + name_of(dtype, s));
}

// Logits of bf16 data have the precision of f32.
TEST(RouterLinear, EqualsNaiveProducts) {
  for (const DType dtype : kFloatDtypes) {
    for (const Sizes s : kProducts) {
      check_products(dtype, s, false, 1);
      check_products(dtype, s, true, 2);
    }
  }
}

TEST(RouterLinear, WorkersDoNotChangeResults) {
  const Sizes s{400, 384, 48};
  for (const DType dtype : thinned<DType>({DType::kBF16, DType::kF32}, 2)) {
    expect_same_for_any_workers([&] { return dgrad_case(dtype, s, true); });
    expect_same_for_any_workers([&] { return wgrad_case(dtype, s, true); });
  }
}

}  // namespace
}  // namespace braid
