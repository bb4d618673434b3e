#include "ops/grouped_linear.h"

#include "support/cuda_kernel_checks.h"
#include "support/grouped_linear_cases.h"

namespace braid {
namespace {

using GroupedLinearCudaTest = CudaKernelTest;

/// In addition to the awkward ones, whose rows are no whole vectors: rows that are, with experts
/// that are empty, have less than a tile, exactly one, and several; and many experts.
std::vector<Groups> all_groups() {
  std::vector<Groups> list = awkward_groups();
  list.push_back({{0, 128, 0, 1, 385, 127, 129, 0}, 264, 200, 70});
  list.push_back({{1}, 8, 8});
  list.push_back({{0, 0, 300}, 512, 1544});
  list.push_back({{0, 0}, 64, 40, 9});
  list.push_back({std::vector<int64_t>(130, 3), 40, 24});
  return list;
}

std::string name_of(DType dtype, const Groups& g) {
  return fmt::format("{} E={} R={} K={} M={}", dtype_name(dtype), g.num_experts(), g.rows(), g.in,
                     g.out);
}

// Rows of no expert are NaN in all operands, before and after.
TEST_F(GroupedLinearCudaTest, ForwardAndDgradEqualTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const Groups& g : all_groups()) {
      expect_equals_cpu(
          grouped_linear_case(dtype, g), context(),
          [&](DType stored) { return sum_tolerance(stored, static_cast<double>(g.in)); },
          name_of(dtype, g));
      expect_equals_cpu(
          grouped_dgrad_case(dtype, g), context(),
          [&](DType stored) { return sum_tolerance(stored, static_cast<double>(g.out)); },
          name_of(dtype, g));
    }
  }
}

TEST_F(GroupedLinearCudaTest, WgradEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const Groups& g : all_groups()) {
      for (const bool accumulate : {false, true}) {
        expect_equals_cpu(
            grouped_wgrad_case(dtype, g, accumulate), context(),
            [&](DType stored) { return sum_tolerance(stored, static_cast<double>(g.rows())); },
            name_of(dtype, g));
      }
    }
  }
}

TEST_F(GroupedLinearCudaTest, GraphAndRerunsAreBitwiseEqual) {
  const Groups g{.counts = {700, 0, 33, 1000, 129}, .in = 512, .out = 1024, .unused_rows = 50};
  CudaContext remembering(0, testing::TempDir() + "/braid_grouped_linear_cuda_test");
  const std::function<KernelCase()> makes[] = {
      [&] { return grouped_linear_case(DType::kBF16, g); },
      [&] { return grouped_dgrad_case(DType::kBF16, g); },
      [&] { return grouped_wgrad_case(DType::kBF16, g, true); },
      [&] { return grouped_wgrad_case(DType::kBF16, g, false); }};
  for (const auto& make : makes) {
    KernelCase first = make();
    run_on_cuda(first, remembering);
    for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
      KernelCase again = make();
      run_on_cuda(again, remembering, how);
      EXPECT_TRUE(again.bytes(3) == first.bytes(3)) << first.spec().op;
    }
  }
}

}  // namespace
}  // namespace braid
