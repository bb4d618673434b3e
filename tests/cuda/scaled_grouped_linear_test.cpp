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

/// Hopper multiplies the first by itself, and converts the other one.
constexpr DType kFormats[] = {DType::kF8E4M3, DType::kF8E5M2};

// Rows of no expert are NaN in all operands, before and after.
TEST_F(ScaledGroupedLinearCudaTest, ForwardAndDgrad) {
  for (const Groups& g : all_groups()) {
    for (const bool is_dgrad : {false, true}) {
      for (const DType format : kFormats) {
        KernelCase kernel = scaled_grouped_case(g, is_dgrad, DType::kBF16, {}, format);
        const std::vector<double> expected = naive_rows(kernel, g, is_dgrad);
        run_on_cuda(kernel, context());
        expect_near(kernel, expected, kTolerance);
      }
    }
  }
}

TEST_F(ScaledGroupedLinearCudaTest, WgradOverwritesOrAdds) {
  for (const Groups& g : all_groups()) {
    for (const bool accumulate : {false, true}) {
      for (const DType format : kFormats) {
        KernelCase kernel = scaled_grouped_wgrad_case(g, accumulate, {}, format);
        const std::vector<double> expected = naive_wgrad(kernel, g, accumulate);
        run_on_cuda(kernel, context());
        expect_near(kernel, expected, kTolerance);
      }
    }
  }
}

// Deeper than all stages of the ring, an odd number of tiles of columns, more tiles than blocks.
TEST_F(ScaledGroupedLinearCudaTest, HasTheBitsOfTheEmulation) {
  const EmulatedSums hopper{.hopper_sums = true};
  for (const Groups& g :
       {Groups{.counts = {130, 0, 61, 300, 1}, .in = 1408, .out = 384, .unused_rows = 12},
        Groups{.counts = {128, 384, 256}, .in = 128, .out = 128},
        Groups{.counts = std::vector<int64_t>(70, 24), .in = 256, .out = 256}}) {
    const std::function<KernelCase()> makes[] = {
        [&] { return scaled_grouped_case(g, false, DType::kBF16, hopper); },
        [&] { return scaled_grouped_case(g, true, DType::kBF16, hopper, DType::kF8E4M3); },
        [&] { return scaled_grouped_wgrad_case(g, true, hopper, DType::kF8E4M3); },
        [&] { return scaled_grouped_wgrad_case(g, false, hopper, DType::kF8E4M3); }};
    for (const auto& make : makes) {
      KernelCase emulated = make();
      emulated.run(2);
      KernelCase kernel = make();
      run_on_cuda(kernel, context());
      EXPECT_TRUE(kernel.bytes(5) == emulated.bytes(5)) << kernel.spec().op;
    }
  }
}

TEST_F(ScaledGroupedLinearCudaTest, GraphAndRerunsAreBitwiseEqual) {
  const Groups g{.counts = {700, 0, 33, 129}, .in = 512, .out = 256, .unused_rows = 50};
  CudaContext remembering(0, testing::TempDir() + "/braid_scaled_grouped_linear_cuda_test");
  for (const DType format : kFormats) {
    const std::function<KernelCase()> makes[] = {
        [&] { return scaled_grouped_case(g, false, DType::kBF16); },
        [&] { return scaled_grouped_case(g, true, DType::kBF16, {}, format); },
        [&] { return scaled_grouped_wgrad_case(g, true, {}, format); },
        [&] { return scaled_grouped_wgrad_case(g, false, {}, format); }};
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
}

}  // namespace
}  // namespace braid
