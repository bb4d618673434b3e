#include "ops/columns.h"

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using ColumnsCudaTest = CudaKernelTest;

constexpr int64_t kRows = 301;

constexpr ColumnsAttributes kForms[] = {{.runs = 1, .width = 1, .begin = 0, .size = 1},
                                        {.runs = 1, .width = 7, .begin = 4, .size = 3},
                                        {.runs = 3, .width = 5, .begin = 0, .size = 4},
                                        {.runs = 2, .width = 9, .begin = 2, .size = 5},
                                        {.runs = 1, .width = 576, .begin = 512, .size = 64}};

TEST_F(ColumnsCudaTest, AreThoseOfTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const ColumnsAttributes& a : kForms) {
      const OperandSpec whole = read(dtype, {kRows, a.runs * a.width});
      const OperandSpec part = read(dtype, {kRows, a.runs * a.size});
      const std::string name = fmt::format("{} {} of {}", dtype_name(dtype), a.size, a.width);
      expect_same_as_cpu(
          [&] {
            return KernelCase(
                {"take_columns", to_attributes(a), {whole, write(dtype, part.shape)}});
          },
          context(), name);
      expect_same_as_cpu(
          [&] {
            return KernelCase({"put_columns", to_attributes(a), {part, write(dtype, whole.shape)}});
          },
          context(), name);
    }
  }
}

}  // namespace
}  // namespace braid
