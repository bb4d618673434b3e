#include "ops/drop_rows.h"

#include "support/cuda_kernel_checks.h"
#include "support/drop_rows_cases.h"

namespace braid {
namespace {

using DropRowsCudaTest = CudaKernelTest;

/// Experts with more rows than a block has threads, and the most experts.
std::vector<RowSizes> drop_sizes() {
  std::vector<RowSizes> sizes(std::begin(kAwkwardRows), std::end(kAwkwardRows));
  sizes.insert(sizes.end(), {{5001, 8, 512, 1}, {4096, 1, 3, 1}, {9, 6, 1024, 1}, {513, 2, 2, 1}});
  return sizes;
}

TEST_F(DropRowsCudaTest, EqualsTheCpu) {
  for (const DropCase& c : drop_cases(drop_sizes())) {
    const auto make = [&] {
      KernelCase kernel = drop_rows_case(c);
      kernel.set(7, {1000, 100, 3, 0, 0});
      return kernel;
    };
    expect_same_as_cpu(make, context(), name_of(c));
  }
}

TEST_F(DropRowsCudaTest, IsBitwiseRepeatable) {
  for (const TestWeights weights : {TestWeights::kRandom, TestWeights::kFew}) {
    const DropCase c{.sizes = {3001, 4, 16, 1}, .capacity = 700, .weights = weights};
    expect_repeatable([&] { return drop_rows_case(c); }, context());
  }
}

}  // namespace
}  // namespace braid
