#include "ops/expert_rows.h"

#include "support/cuda_kernel_checks.h"
#include "support/expert_rows_cases.h"

namespace braid {
namespace {

using ExpertRowsCudaTest = CudaKernelTest;

/// Several pieces of the sort with a short last one, the most experts, rows of several blocks.
constexpr RowSizes kLarge[] = {{5001, 8, 512, 1}, {4096, 1, 3, 40}, {9, 6, 1024, 8200}};

std::vector<RowSizes> all_sizes() {
  std::vector<RowSizes> sizes(std::begin(kAwkwardRows), std::end(kAwkwardRows));
  sizes.insert(sizes.end(), std::begin(kLarge), std::end(kLarge));
  return sizes;
}

std::string name_of(DType dtype, const RowSizes& s) {
  return fmt::format("{} T={} K={} E={} C={}", dtype_name(dtype), s.tokens, s.per_token, s.experts,
                     s.width);
}

TEST_F(ExpertRowsCudaTest, SortEqualsTheCpu) {
  for (const RowSizes& s : all_sizes()) {
    expect_same_as_cpu([&] { return with_random_experts(sort_rows_case(s), s); }, context(),
                       name_of(DType::kI32, s));
    const auto watched = [&] {
      KernelCase kernel = with_random_experts(watched_rows_case(s), s);
      kernel.set_all(5, 1000);
      return kernel;
    };
    expect_same_as_cpu(watched, context(), name_of(DType::kI32, s) + " watched");
    for (const double expert : {0.0, static_cast<double>(s.experts - 1)}) {
      const auto to_one = [&] {
        KernelCase kernel = sort_rows_case(s);
        kernel.set_all(0, expert);
        return kernel;
      };
      expect_same_as_cpu(to_one, context(), name_of(DType::kI32, s) + " to one");
    }
  }
}

// Sums are in the same order as the CPU's, so they have the same values.
TEST_F(ExpertRowsCudaTest, GatherAndSumEqualTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const RowSizes& s : all_sizes()) {
      expect_same_as_cpu([&] { return gather_rows_case(dtype, s); }, context(), name_of(dtype, s));
      expect_same_as_cpu([&] { return sum_rows_case(dtype, s); }, context(), name_of(dtype, s));
      expect_same_as_cpu([&] { return permute_elems_case(dtype, s); }, context(),
                         name_of(dtype, s));
    }
  }
}

// Rows that a gather leaves alone stay NaN on both sides.
TEST_F(ExpertRowsCudaTest, MovesWithDroppedRowsEqualTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const RowSizes& s : all_sizes()) {
      for (const int64_t end : ends_of_rows(s)) {
        const std::string name = fmt::format("{} end={}", name_of(dtype, s), end);
        const auto expect_same = [&](KernelCase (*whole)(DType, const RowSizes&)) {
          expect_same_as_cpu([&] { return with_dropped_rows(whole(dtype, s), end); }, context(),
                             name);
        };
        expect_same(gather_rows_case);
        expect_same(sum_rows_case);
        expect_same(permute_elems_case);
        expect_same(permute_back_case);
      }
    }
  }
}

TEST_F(ExpertRowsCudaTest, RoutedActivationsEqualTheCpu) {
  for (const RoutedActivation& activation : kRoutedActivations) {
    for (const DType dtype : kCudaDtypes) {
      for (const RowSizes& s : all_sizes()) {
        const std::string name = activation.name + " " + name_of(dtype, s);
        expect_equals_cpu(routed_case(activation, dtype, s), context(), rounded_once(1e-6, 1e-5),
                          name);
        // The gradient of a weight is a sum over its row, of terms below 1.
        const double lost = 1e-6 + 1e-7 * static_cast<double>(s.width);
        expect_equals_cpu(routed_backward_case(activation, dtype, s), context(),
                          rounded_once(lost, 1e-5), name);
      }
    }
  }
}

// Rows that no expert has stay NaN, as the harness left them, on both sides.
TEST_F(ExpertRowsCudaTest, RoutedActivationsLeaveRowsOfNobodyAlone) {
  const RowSizes s{7, 2, 2, 40};
  for (const RoutedActivation& activation : kRoutedActivations) {
    for (const DType dtype : kCudaDtypes) {
      KernelCase forward = routed_case(activation, dtype, s);
      forward.set(2, offsets_to(9));
      expect_equals_cpu(std::move(forward), context(), rounded_once(1e-6, 1e-5), "forward");
      KernelCase backward = routed_backward_case(activation, dtype, s);
      backward.set(3, offsets_to(9));
      expect_equals_cpu(std::move(backward), context(), rounded_once(1e-5, 1e-5), "backward");
    }
  }
}

TEST_F(ExpertRowsCudaTest, IsBitwiseRepeatable) {
  const RowSizes s{700, 4, 64, 1040};
  expect_repeatable([&] { return with_random_experts(sort_rows_case(s), s); }, context());
  for (const DType dtype : kCudaDtypes) {
    expect_repeatable([&] { return gather_rows_case(dtype, s); }, context());
    expect_repeatable([&] { return sum_rows_case(dtype, s); }, context());
    for (const RoutedActivation& activation : kRoutedActivations) {
      expect_repeatable([&] { return routed_case(activation, dtype, s); }, context());
      expect_repeatable([&] { return routed_backward_case(activation, dtype, s); }, context());
    }
  }
}

TEST_F(ExpertRowsCudaTest, SaysHowManyExpertsAreTooMany) {
  const RowSizes s{4, 1, 1025, 1};
  EXPECT_THROW(make_cuda_kernel(sort_rows_case(s).spec(), context()), InternalError);
}

}  // namespace
}  // namespace braid
