#include "support/cuda_kernel_checks.h"
#include "support/main_grad_cases.h"

namespace braid {
namespace {

using MainGradCudaTest = CudaKernelTest;

/// Of a dense product that is added, cuBLASLt rounds the product to bf16 before in some algorithms.
Tolerance tolerance_of(const MainGradCase& narrow, const std::vector<double>& expected) {
  Tolerance tolerance = sum_rounded_once(narrow.terms);
  const OpSpec& spec = narrow.kernel.spec();
  const bool is_dense = spec.op == kLinearWgradOp.name || spec.op == kScaledLinearWgradOp.name;
  if (is_dense && spec.operands[narrow.grads.front()].access == Access::kReadWrite) {
    double largest = 0;
    for (const double value : expected) {
      largest = std::max(largest, std::abs(value));
    }
    tolerance.absolute += rounding_error(DType::kBF16) * (largest + 1);
  }
  return tolerance;
}

// The CPU's fp32 gradients are those of f64 but for fp32 sums. Sums of FP8 factors by tensor cores
// keep about 14 bits.
TEST_F(MainGradCudaTest, RoundAnFp32SumOnce) {
  for (MainGradCase& narrow : main_grad_cases()) {
    KernelCase expected = narrow.with_grads(DType::kF32);
    expected.run(2);
    run_on_cuda(narrow.kernel, context());
    for (const size_t grad : narrow.grads) {
      const std::vector<double> values = expected.values(grad);
      Tolerance tolerance = tolerance_of(narrow, values);
      if (narrow.is_fp8) {
        double largest = 0;
        for (const double value : values) {
          largest = std::max(largest, std::abs(value));
        }
        tolerance.absolute += 0x1p-10 * largest;
      }
      expect_close(narrow.kernel.values(grad), values, tolerance, narrow.name());
    }
  }
}

// The same kernels read both types, so that bits are equal.
TEST_F(MainGradCudaTest, AreReadLikeFp32Ones) {
  for (MainGradCase& narrow : gradient_reader_cases()) {
    KernelCase expected = narrow.with_grads(DType::kF32);
    run_on_cuda(narrow.kernel, context());
    run_on_cuda(expected, context());
    expect_same_results(narrow, expected);
  }
}

TEST_F(MainGradCudaTest, GraphAndRerunsAreBitwiseEqual) {
  CudaContext remembering(0, testing::TempDir() + "/braid_main_grad_cuda_test");
  for (const MainGradCase& narrow : main_grad_cases()) {
    KernelCase first = narrow.with_grads(DType::kBF16);
    run_on_cuda(first, remembering);
    for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
      KernelCase again = narrow.with_grads(DType::kBF16);
      run_on_cuda(again, remembering, how);
      for (const size_t grad : narrow.grads) {
        EXPECT_TRUE(again.bytes(grad) == first.bytes(grad)) << narrow.name();
      }
    }
  }
}

}  // namespace
}  // namespace braid
