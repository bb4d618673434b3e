// Products against sums in double precision of the factors' exact values.
#include "ops/scaled_grouped_linear.h"

#include "support/cuda_kernel_case.h"
#include "support/grouped_copies_cases.h"

namespace braid {
namespace {

using ScaledGroupedLinearCudaTest = CudaKernelTest;

/// Tensor cores drop bits below 2^-13 of the largest of 32 products (docs/numerics.md).
constexpr double kTolerance = 2e-3;

std::vector<Groups> all_groups() {
  std::vector<Groups> list = awkward_copies();
  list.push_back({{0, 128, 0, 1, 385, 127, 129, 0}, 256, 128, 70});
  list.push_back({std::vector<int64_t>(40, 3), 128, 128});
  return list;
}

// Rows of no expert are NaN in all operands, before and after.
TEST_F(ScaledGroupedLinearCudaTest, ForwardAndDgrad) {
  for (const Groups& g : all_groups()) {
    for (const bool is_dgrad : {false, true}) {
      KernelCase kernel = scaled_grouped_case(g, is_dgrad, DType::kBF16);
      const std::vector<double> expected = naive_rows(kernel, g, is_dgrad);
      run_on_cuda(kernel, context());
      expect_near(kernel, expected, kTolerance);
    }
  }
}

TEST_F(ScaledGroupedLinearCudaTest, WgradOverwritesOrAdds) {
  for (const Groups& g : all_groups()) {
    for (const bool accumulate : {false, true}) {
      KernelCase kernel = scaled_grouped_wgrad_case(g, accumulate);
      const std::vector<double> expected = naive_wgrad(kernel, g, accumulate);
      run_on_cuda(kernel, context());
      expect_near(kernel, expected, kTolerance);
    }
  }
}

TEST_F(ScaledGroupedLinearCudaTest, GraphAndRerunsAreBitwiseEqual) {
  const Groups g{.counts = {700, 0, 33, 129}, .in = 512, .out = 256, .unused_rows = 50};
  CudaContext remembering(0, testing::TempDir() + "/braid_scaled_grouped_linear_cuda_test");
  const std::function<KernelCase()> makes[] = {
      [&] { return scaled_grouped_case(g, false, DType::kBF16); },
      [&] { return scaled_grouped_case(g, true, DType::kBF16); },
      [&] { return scaled_grouped_wgrad_case(g, true); },
      [&] { return scaled_grouped_wgrad_case(g, false); }};
  for (const auto& make : makes) {
    KernelCase first = make();
    run_on_cuda(first, remembering);
    for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
      KernelCase again = make();
      run_on_cuda(again, remembering, how);
      EXPECT_TRUE(again.bytes(5) == first.bytes(5)) << first.spec().op;
    }
  }
}

}  // namespace
}  // namespace braid
