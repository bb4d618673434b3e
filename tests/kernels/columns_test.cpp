#include "ops/columns.h"

#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr int64_t kRows = 5;

KernelCase take_case(DType dtype, const ColumnsAttributes& a, int64_t rows = kRows) {
  return KernelCase(
      {"take_columns",
       to_attributes(a),
       {read(dtype, {rows, a.runs * a.width}), write(dtype, {rows, a.runs * a.size})}});
}

KernelCase put_case(DType dtype, const ColumnsAttributes& a) {
  return KernelCase(
      {"put_columns",
       to_attributes(a),
       {read(dtype, {kRows, a.runs * a.size}), write(dtype, {kRows, a.runs * a.width})}});
}

constexpr ColumnsAttributes kAwkwardColumns[] = {{.runs = 1, .width = 1, .begin = 0, .size = 1},
                                                 {.runs = 1, .width = 7, .begin = 4, .size = 3},
                                                 {.runs = 3, .width = 5, .begin = 0, .size = 4},
                                                 {.runs = 2, .width = 9, .begin = 2, .size = 5}};

/// For each element of the taken columns, in order: its place in the whole rows.
std::vector<size_t> places(const ColumnsAttributes& a) {
  std::vector<size_t> list;
  for (int64_t run = 0; run < kRows * a.runs; ++run) {
    for (int64_t i = 0; i < a.size; ++i) {
      list.push_back(static_cast<size_t>(run * a.width + a.begin + i));
    }
  }
  return list;
}

TEST(TakeColumns, CopiesThem) {
  for (const DType dtype : kFloatDtypes) {
    for (const ColumnsAttributes& a : kAwkwardColumns) {
      KernelCase kernel = take_case(dtype, a);
      kernel.run(2);
      std::vector<double> expected;
      for (const size_t place : places(a)) {
        expected.push_back(kernel.values(0)[place]);
      }
      EXPECT_EQ(kernel.values(1), expected);
    }
  }
}

TEST(PutColumns, LeavesZerosBetweenThem) {
  for (const DType dtype : kFloatDtypes) {
    for (const ColumnsAttributes& a : kAwkwardColumns) {
      KernelCase kernel = put_case(dtype, a);
      kernel.run(2);
      std::vector<double> expected(static_cast<size_t>(kRows * a.runs * a.width), 0.0);
      size_t next = 0;
      for (const size_t place : places(a)) {
        expected[place] = kernel.values(0)[next++];
      }
      EXPECT_EQ(kernel.values(1), expected);
    }
  }
}

TEST(TakeColumns, DoesNotDependOnTheNumberOfWorkers) {
  expect_same_for_any_workers([&] {
    return take_case(DType::kBF16, {.runs = 4, .width = 100, .begin = 7, .size = 61}, 500);
  });
}

}  // namespace
}  // namespace braid
