#include "support/cached_cases.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using CachedMamba2CudaTest = CudaKernelTest;

std::vector<CachedMamba2Case> all_cases() {
  std::vector<CachedMamba2Case> cases;
  for (const Mamba2Case& whole : whole_mamba2_cases()) {
    cases.push_back({whole, 1});
    cases.push_back({whole, whole.a.sequence});
  }
  return cases;
}

/// Sequences in the middle, but for the first, which begins.
KernelCase filled(const CachedMamba2Case& c, DType dtype) {
  KernelCase kernel = c.make(dtype);
  std::vector<double> begins(static_cast<size_t>(c.whole.batches), 9.0);
  begins.front() = 0;
  kernel.set(7, begins);
  kernel.set_all(8, static_cast<double>(c.rows));
  return kernel;
}

// Sums of up to a few hundred products in another order; y is rounded before the norm.
TEST_F(CachedMamba2CudaTest, EqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const CachedMamba2Case& c : all_cases()) {
      expect_equals_cpu(filled(c, dtype), context(),
                        rounded_once(dtype == DType::kF32 ? 1e-4 : 0.02), c.whole.name(dtype));
    }
  }
}

TEST_F(CachedMamba2CudaTest, IsBitwiseRepeatable) {
  for (const DType dtype : kCudaDtypes) {
    for (const CachedMamba2Case& c : all_cases()) {
      expect_repeatable([&] { return filled(c, dtype); }, context());
    }
  }
}

}  // namespace
}  // namespace braid
