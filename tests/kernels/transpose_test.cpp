#include "ops/transpose.h"

#include <utility>

#include "support/kernel_harness.h"

namespace braid {
namespace {

KernelCase transpose_case(int64_t rows, int64_t columns) {
  return KernelCase(
      {"transpose",
       {},
       {read(DType::kF8E5M2, {rows, columns}), write(DType::kF8E5M2, {columns, rows})}});
}

TEST(Transpose, SwapsRowsAndColumnsOfAnySizes) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 1}, {1, 70}, {65, 3}, {130, 257}}) {
    KernelCase kernel = transpose_case(rows, columns);
    kernel.run(3);
    const std::vector<std::byte> x = kernel.bytes(0);
    const std::vector<std::byte> y = kernel.bytes(1);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        ASSERT_EQ(y[static_cast<size_t>(c * rows + r)], x[static_cast<size_t>(r * columns + c)])
            << r << ", " << c;
      }
    }
  }
}

TEST(Transpose, AnyNumberOfWorkers) {
  expect_same_for_any_workers([] { return transpose_case(300, 260); });
}

}  // namespace
}  // namespace braid
