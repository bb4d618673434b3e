#include "ops/adapter.h"

#include "support/adapter_cases.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using AdapterCudaTest = CudaKernelTest;

TEST_F(AdapterCudaTest, EqualsTheCpu) {
  std::vector<AdapterSizes> sizes = kAwkwardAdapters;
  sizes.insert(sizes.end(), kWideAdapters.begin(), kWideAdapters.end());
  for (const DType dtype : kCudaDtypes) {
    for (const AdapterSizes& s : sizes) {
      const std::string name = fmt::format("{} N={} M={}", dtype_name(dtype), s.rows, s.width);
      expect_equals_cpu(add_adapters_case(dtype, s), context(), rounded_once(1e-6, 1e-5), name);
      expect_equals_cpu(adapter_grad_case(dtype, s), context(), rounded_once(1e-6, 1e-5), name);
    }
  }
}

}  // namespace
}  // namespace braid
