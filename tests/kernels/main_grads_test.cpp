#include "support/main_grad_cases.h"

namespace braid {
namespace {

/// All floating-point operands in f64, with the same values, after a run.
KernelCase in_f64(const MainGradCase& narrow) {
  std::vector<size_t> floats;
  for (size_t i = 0; i < narrow.kernel.spec().operands.size(); ++i) {
    if (is_floating_point(narrow.kernel.spec().operands[i].dtype)) {
      floats.push_back(i);
    }
  }
  KernelCase exact = with_dtypes(narrow.kernel, floats, DType::kF64);
  exact.run(2);
  return exact;
}

// FP8 factors have no f64 kernel; their fp32 one is compared with f64 in its own test.
TEST(MainGradKernels, RoundAnFp32SumOnce) {
  for (MainGradCase& narrow : main_grad_cases()) {
    KernelCase expected = narrow.is_fp8 ? narrow.with_grads(DType::kF32) : in_f64(narrow);
    if (narrow.is_fp8) {
      expected.run(2);
    }
    narrow.kernel.run(2);
    for (const size_t grad : narrow.grads) {
      expect_close(narrow.kernel.values(grad), expected.values(grad),
                   sum_rounded_once(narrow.terms), narrow.name());
    }
  }
}

// A product in bf16 would lose these addends: 2^-9 of what they are added to, a hundred times.
TEST(MainGradKernels, SumTheAddendsOfATaskInFp32) {
  KernelCase product = narrow_wgrad_case(100, 3, 5, true, true);
  for (const auto& [operand, value] : {std::pair<size_t, double>{0, 0x1p-9}, {1, 1}, {2, 1}}) {
    product.set_all(operand, value);
  }
  product.set_all(3, 1024);
  product.run();
  for (const double value : product.values(2)) {
    EXPECT_EQ(value, rounded_to(DType::kBF16, 1 + 100 * 0x1p-9));
  }
  for (const double value : product.values(3)) {
    EXPECT_EQ(value, rounded_to(DType::kBF16, 1124));
  }
  KernelCase table = narrow_table_case(100, 3, 1, 0, 1, true);
  table.set_all(1, 0x1p-9);
  table.set_all(2, 1);
  table.run();
  for (const double value : table.values(2)) {
    EXPECT_EQ(value, rounded_to(DType::kBF16, 1 + 100 * 0x1p-9));
  }
}

TEST(MainGradKernels, DoNotDependOnTheNumberOfWorkers) {
  expect_same_for_any_workers([] { return narrow_wgrad_case(1024, 160, 352, true, true); });
  expect_same_for_any_workers([] { return narrow_table_case(900, 1040, 500, 0, 500, false); });
  expect_same_for_any_workers([] { return narrow_table_case(900, 1040, 500, 0, 500, true); });
}

TEST(MainGradKernels, RefuseATokenThatIsUnknown) {
  KernelCase table = narrow_table_case(9, 4, 10, 0, 10, true);
  table.set(0, {0, 1, 2, 3, 10, 5, 6, 7, 8});
  EXPECT_THROW(table.run(), DeviceError);
}

// What reads a gradient in bf16 does the same with it in fp32, bit for bit.
TEST(MainGradKernels, AreReadLikeFp32Ones) {
  for (MainGradCase& narrow : gradient_reader_cases()) {
    KernelCase expected = narrow.with_grads(DType::kF32);
    narrow.kernel.run(2);
    expected.run(2);
    expect_same_results(narrow, expected);
  }
}

}  // namespace
}  // namespace braid
