#include "ops/add_gated.h"

#include "support/add_gated_cases.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using AddGatedCudaTest = CudaKernelTest;

std::vector<GatedSizes> all_sizes() {
  std::vector<GatedSizes> sizes(std::begin(kAwkwardGatedSizes), std::end(kAwkwardGatedSizes));
  sizes.insert(sizes.end(), {{512, 2048}, {9, 8200}});
  return sizes;
}

TEST_F(AddGatedCudaTest, EqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const GatedSizes& s : all_sizes()) {
      const std::string name = fmt::format("{} T={} C={}", dtype_name(dtype), s.rows, s.width);
      expect_equals_cpu(add_gated_case(dtype, s), context(), rounded_once(1e-6, 1e-5), name);
      // The gradient of a gate is a sum over its row, of terms below 1.
      const double lost = 1e-6 + 1e-7 * static_cast<double>(s.width);
      expect_equals_cpu(add_gated_backward_case(dtype, s), context(), rounded_once(lost, 1e-5),
                        name);
    }
  }
}

TEST_F(AddGatedCudaTest, IsBitwiseRepeatable) {
  for (const DType dtype : kCudaDtypes) {
    expect_repeatable([&] { return add_gated_case(dtype, {700, 1040}); }, context());
    expect_repeatable([&] { return add_gated_backward_case(dtype, {700, 1040}); }, context());
  }
}

}  // namespace
}  // namespace braid
