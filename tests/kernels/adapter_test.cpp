#include "ops/adapter.h"

#include "support/adapter_cases.h"

namespace braid {
namespace {

Tolerance rounded_once(DType dtype) {
  return {.absolute = 8 * rounding_error(wide(dtype)), .relative = 2 * rounding_error(dtype)};
}

TEST(AddAdapters, AddsScaledColumnsWhereTheyBelong) {
  for (const DType dtype : kFloatDtypes) {
    for (const AdapterSizes& s : kAwkwardAdapters) {
      KernelCase kernel = add_adapters_case(dtype, s);
      std::vector<double> expected = kernel.values(0);
      for (size_t i = 0; i < s.sizes.size(); ++i) {
        const std::vector<double> z = kernel.values(i + 1);
        for (int64_t at = 0; at < s.rows * s.sizes[i]; ++at) {
          const int64_t column = s.begins[i] + at % s.sizes[i] * s.step;
          expected[static_cast<size_t>(at / s.sizes[i] * s.width + column)] +=
              kAdapterScale * z[static_cast<size_t>(at)];
        }
      }
      kernel.run(2);
      expect_close(kernel.values(s.sizes.size() + 1), expected, rounded_once(dtype));
    }
  }
}

TEST(AdapterGrad, AgreesWithDifferences) {
  for (const AdapterSizes& s : kAwkwardAdapters) {
    KernelCase backward = adapter_grad_case(DType::kF64, s);
    backward.run();
    const std::vector<double> probe = backward.values(0);
    const size_t last = s.sizes.size();
    const auto loss = [&](const std::vector<double>& z) {
      KernelCase forward = add_adapters_case(DType::kF64, s);
      forward.set(last, z);
      forward.run();
      return dot(forward.values(last + 1), probe);
    };
    expect_gradient(loss, add_adapters_case(DType::kF64, s).values(last), backward.values(1), "dz");
  }
}

TEST(AddAdapters, DoesNotDependOnTheNumberOfWorkers) {
  const AdapterSizes large{600, 302, {0, 1}, {151, 151}, 2};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_same_for_any_workers([&] { return add_adapters_case(dtype, large); });
    expect_same_for_any_workers([&] { return adapter_grad_case(dtype, large); });
  }
}

}  // namespace
}  // namespace braid
