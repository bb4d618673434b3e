#include "ops/grouped_linear.h"

#include <limits>

#include "base/expect_error.h"
#include "support/grouped_linear_cases.h"

namespace braid {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Calls visit(expert, row) for the rows of all experts.
void for_each_row(const Groups& g, const std::function<void(int64_t, int64_t)>& visit) {
  int64_t row = 0;
  for (int64_t e = 0; e < g.num_experts(); ++e) {
    for (int64_t end = row + g.counts[static_cast<size_t>(e)]; row < end; ++row) {
      visit(e, row);
    }
  }
}

size_t at(int64_t row, int64_t width, int64_t column) {
  return static_cast<size_t>(row * width + column);
}

/// to[row of a] += a w of the row's expert; rows of no expert stay NaN, as they were.
std::vector<double> naive_rows(const KernelCase& kernel, const Groups& g, bool transposed) {
  const auto a = kernel.values(0);
  const auto w = kernel.values(1);
  const int64_t depth = transposed ? g.in : g.out;
  const int64_t width = transposed ? g.out : g.in;
  std::vector<double> y(static_cast<size_t>(g.rows() * width), kNan);
  for_each_row(g, [&](int64_t e, int64_t row) {
    for (int64_t c = 0; c < width; ++c) {
      double sum = 0;
      for (int64_t i = 0; i < depth; ++i) {
        const int64_t weight_row = e * g.out + (transposed ? c : i);
        sum += a[at(row, depth, i)] * w[at(weight_row, g.in, transposed ? i : c)];
      }
      y[at(row, width, c)] = sum;
    }
  });
  return y;
}

std::vector<double> naive_wgrad(const KernelCase& kernel, const Groups& g, bool accumulate) {
  const auto x = kernel.values(0);
  const auto dy = kernel.values(1);
  auto dw =
      accumulate ? kernel.values(3) : std::vector<double>(static_cast<size_t>(g.weights() * g.in));
  for_each_row(g, [&](int64_t e, int64_t row) {
    for (int64_t m = 0; m < g.out; ++m) {
      for (int64_t c = 0; c < g.in; ++c) {
        dw[at(e * g.out + m, g.in, c)] += dy[at(row, g.out, m)] * x[at(row, g.in, c)];
      }
    }
  });
  return dw;
}

TEST(GroupedLinear, EqualsTheNaiveProducts) {
  for (const DType dtype : kFloatDtypes) {
    for (const Groups& g : awkward_groups()) {
      KernelCase kernel = grouped_linear_case(dtype, g);
      const auto expected = naive_rows(kernel, g, true);
      kernel.run(2);
      expect_close(kernel.values(3), expected, sum_tolerance(dtype, static_cast<double>(g.in) + 1));
    }
  }
}

TEST(GroupedLinearDgrad, EqualsTheNaiveProducts) {
  for (const DType dtype : kFloatDtypes) {
    for (const Groups& g : awkward_groups()) {
      KernelCase kernel = grouped_dgrad_case(dtype, g);
      const auto expected = naive_rows(kernel, g, false);
      kernel.run(2);
      expect_close(kernel.values(3), expected,
                   sum_tolerance(dtype, static_cast<double>(g.out) + 1));
    }
  }
}

// Without `accumulate`, the gradient held NaN: experts without rows must get 0.
TEST(GroupedLinearWgrad, EqualsTheNaiveProducts) {
  for (const DType dtype : kFloatDtypes) {
    for (const Groups& g : awkward_groups()) {
      for (const bool accumulate : {false, true}) {
        KernelCase kernel = grouped_wgrad_case(dtype, g, accumulate);
        const auto expected = naive_wgrad(kernel, g, accumulate);
        kernel.run(2);
        expect_close(kernel.values(3), expected,
                     sum_tolerance(wide(dtype), static_cast<double>(g.used_rows()) + 1));
      }
    }
  }
}

TEST(GroupedLinear, RefusesOffsetsThatAreNoRanges) {
  const Groups g{.counts = {2, 3}, .in = 4, .out = 5};
  for (const std::vector<double>& offsets : {std::vector<double>{0, 6, 5}, {0, 2, 6}, {-1, 2, 5}}) {
    KernelCase kernel = grouped_linear_case(DType::kF32, g);
    kernel.set(2, offsets);
    EXPECT_THAT(message_of<DeviceError>([&] { kernel.run(); }), testing::HasSubstr("of 5"));
  }
}

TEST(GroupedLinear, DoesNotDependOnTheNumberOfWorkers) {
  const Groups g{.counts = {129, 0, 700, 3, 301}, .in = 160, .out = 352, .unused_rows = 5};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_same_for_any_workers([&] { return grouped_linear_case(dtype, g); });
    expect_same_for_any_workers([&] { return grouped_dgrad_case(dtype, g); });
    expect_same_for_any_workers([&] { return grouped_wgrad_case(dtype, g, true); });
  }
}

TEST(GroupedLinear, GradientsAgreeWithDifferences) {
  const Groups g{.counts = {2, 0, 3}, .in = 4, .out = 5};
  KernelCase forward = grouped_linear_case(DType::kF64, g);
  const auto probe = TestRandom(9).uniforms(g.rows() * g.out, -1, 1);
  const auto loss_of = [&](size_t operand) {
    return [&, operand](const std::vector<double>& values) {
      KernelCase changed = grouped_linear_case(DType::kF64, g);
      changed.set(operand, values);
      changed.run();
      return dot(changed.values(3), probe);
    };
  };
  KernelCase dgrad = grouped_dgrad_case(DType::kF64, g);
  dgrad.set(0, probe);
  dgrad.set(1, forward.values(1));
  dgrad.run();
  expect_gradient(loss_of(0), forward.values(0), dgrad.values(3), "dx");
  KernelCase wgrad = grouped_wgrad_case(DType::kF64, g, false);
  wgrad.set(0, forward.values(0));
  wgrad.set(1, probe);
  wgrad.run();
  expect_gradient(loss_of(1), forward.values(1), wgrad.values(3), "dw");
}

}  // namespace
}  // namespace braid
