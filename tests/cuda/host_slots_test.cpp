#include "ops/host_slots.h"

#include "support/cuda_kernel_checks.h"
#include "support/partial_rows_cases.h"

namespace braid {
namespace {

using HostSlotsCudaTest = CudaKernelTest;
using PartialRowsCudaTest = CudaKernelTest;

TEST_F(HostSlotsCudaTest, EqualsTheCpu) {
  for (const SlotsCase& c : slots_cases()) {
    expect_same_as_cpu([&] { return slots_case(c); }, context(), name_of(c));
  }
}

/// In addition: rows that several blocks of threads share, and many pieces of a sort.
std::vector<PartialRows> awkward_cases() {
  std::vector<RowSizes> sizes(std::begin(kAwkwardRows), std::end(kAwkwardRows));
  sizes.insert(sizes.end(), {{5001, 8, 32, 8}, {33, 8, 128, 2048}});
  return partial_rows(sizes);
}

TEST_F(PartialRowsCudaTest, AreSortedAsOnTheCpu) {
  for (const PartialRows& c : awkward_cases()) {
    expect_same_as_cpu([&] { return sort_into_case(c); }, context(), name_of(c));
  }
}

TEST_F(PartialRowsCudaTest, AreMovedAsOnTheCpu) {
  for (const PartialRows& c : awkward_cases()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      expect_same_as_cpu([&] { return partial_gather_case(dtype, c); }, context(), name_of(c));
    }
    expect_same_as_cpu([&] { return partial_gather_case(DType::kF8E4M3, c); }, context(),
                       name_of(c));
    for (const bool back : {false, true}) {
      expect_same_as_cpu([&] { return partial_permute_case(DType::kF32, c, back); }, context(),
                         name_of(c));
    }
  }
}

TEST_F(PartialRowsCudaTest, AreSummedAsOnTheCpu) {
  for (const PartialRows& c : awkward_cases()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      KernelCase expected = partial_sum_case(dtype, c);
      KernelCase found = partial_sum_case(dtype, c);
      expected.run();
      run_on_cuda(found, context());
      expect_close(found.values(3), expected.values(3), {}, name_of(c));  // NaN have other bits
    }
  }
}

TEST_F(PartialRowsCudaTest, AreRoundedAsOnTheCpu) {
  for (const PartialRows& c :
       partial_rows({{7, 2, 5, 256}, {19, 8, 64, 384}, {33, 8, 128, 2048}})) {
    expect_same_as_cpu([&] { return partial_quantize_case(DType::kBF16, c); }, context(),
                       name_of(c));
  }
}

}  // namespace
}  // namespace braid
