#include "ops/linear_swiglu.h"

#include "support/cuda_kernel_checks.h"
#include "support/linear_swiglu_cases.h"

namespace braid {
namespace {

/// Ones, primes, multiples of 8 but not of a tile, and one that fills the device.
constexpr SwigluSizes kSizes[] = {{1, 1, 1},       {1, 7, 3},        {13, 31, 17},
                                  {67, 48, 101},   {128, 64, 256},   {200, 1000, 264},
                                  {33, 4099, 129}, {300, 8, 8 * 37}, {2048, 512, 768}};

using LinearSwigluCudaTest = CudaKernelTest;

std::string name_of(DType dtype, SwigluSizes s) {
  return fmt::format("{} N={} K={} F={}", dtype_name(dtype), s.rows, s.depth, s.ffn);
}

// y is a function of the rounded product: of what was not rounded it would be off by more than its
// own rounding. Sums are some 100 at most: an exponent that is off by as many half units gives
// 1e-5.
TEST_F(LinearSwigluCudaTest, ForwardEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const SwigluSizes s : kSizes) {
      KernelCase kernel(linear_swiglu_spec(dtype, s));
      const KernelCase expected = f64_reference(kernel);
      run_on_cuda(kernel, context());
      expect_close(kernel.values(2), expected.values(2),
                   sum_tolerance(dtype, static_cast<double>(s.depth)),
                   "gate_up " + name_of(dtype, s));
      expect_close(kernel.values(3), swiglu_of_written(kernel), rounded_once(1e-4, 1e-5)(dtype),
                   "y " + name_of(dtype, s));
    }
  }
}

// Factors behind d_h are at most 1.1 here; it and the result are each rounded once.
TEST_F(LinearSwigluCudaTest, BackwardEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const SwigluSizes s : kSizes) {
      KernelCase kernel(linear_dgrad_swiglu_backward_spec(dtype, s));
      const KernelCase expected = f64_reference(kernel);
      run_on_cuda(kernel, context());
      Tolerance tolerance = sum_tolerance(dtype, static_cast<double>(s.depth));
      tolerance.absolute *= 1.1;
      tolerance.relative += 2 * rounding_error(dtype) + 1e-5;
      expect_close(kernel.values(3), expected.values(3), tolerance,
                   "d_gate_up " + name_of(dtype, s));
    }
  }
}

TEST_F(LinearSwigluCudaTest, GraphAndRerunsAreBitwiseEqual) {
  const SwigluSizes sizes{4096, 1024, 1536};
  for (const auto make : {linear_swiglu_spec, linear_dgrad_swiglu_backward_spec}) {
    CudaContext remembering(0, testing::TempDir() + "/braid_linear_swiglu_cuda_test");
    KernelCase first(make(DType::kBF16, sizes));
    run_on_cuda(first, remembering);
    for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
      KernelCase again(make(DType::kBF16, sizes));
      run_on_cuda(again, remembering, how);
      for (size_t i = 0; i < first.spec().operands.size(); ++i) {
        EXPECT_TRUE(again.bytes(i) == first.bytes(i)) << first.spec().op << " operand " << i;
      }
    }
  }
}

}  // namespace
}  // namespace braid
