#include "ops/elementwise.h"

#include "ops/specs.h"

namespace braid {
namespace {

OpSpec cast_spec(DType from, DType to) {
  return {"cast", {}, {read(from, {2, 3}), write(to, {2, 3})}};
}

TEST(CastCheck, ConvertsF32ToAndFromItsNeighboursOnly) {
  const DType dtypes[] = {DType::kF64,    DType::kF32, DType::kBF16, DType::kF16,
                          DType::kF8E4M3, DType::kI32, DType::kI64};
  for (const DType from : dtypes) {
    for (const DType to : dtypes) {
      const auto is_neighbour = [](DType d) { return d == DType::kF64 || d == DType::kBF16; };
      const bool declared =
          (from == DType::kF32 && is_neighbour(to)) || (to == DType::kF32 && is_neighbour(from));
      if (declared) {
        EXPECT_NO_THROW(check_spec(cast_spec(from, to)));
      } else {
        expect_refused(cast_spec(from, to), "x and y must be f32 and bf16, or f64 and f32");
      }
    }
  }
}

TEST(CastCheck, KeepsTheShape) {
  expect_refused(with_operand(cast_spec(DType::kF32, DType::kBF16), 1, write(DType::kBF16, {3, 2})),
                 "x and y must have one shape");
}

TEST(AddAndCopyCheck, RefuseMixedDtypesAndShapes) {
  const OperandSpec x = read(DType::kF32, {6});
  const OpSpec add_spec{"add", {}, {x, x, write(DType::kF32, {6})}};
  expect_refused(with_operand(add_spec, 1, read(DType::kBF16, {6})), "operand b is bf16 [6]");
  expect_refused(with_operand(add_spec, 2, write(DType::kF32, {2, 3})), "operand c is f32 [2,3]");
  expect_refused({"copy", {}, {x, write(DType::kBF16, {6})}}, "operand y is bf16 [6]");
  expect_refused({"copy", {}, {x, write(DType::kF32, {5})}}, "operand y is f32 [5]");
}

TEST(AccumulateCheck, AddsToAnAccumulator) {
  for (const auto& [data, wide] : {std::pair{DType::kBF16, DType::kF32},
                                   {DType::kF32, DType::kF32},
                                   {DType::kF64, DType::kF64},
                                   {DType::kBF16, DType::kBF16},
                                   {DType::kF32, DType::kBF16}}) {
    EXPECT_NO_THROW(check_spec({"accumulate", {}, {read(data, {2, 3}), read_write(wide, {2, 3})}}));
  }
  for (const DType narrower : {DType::kF32, DType::kBF16}) {
    expect_refused({"accumulate", {}, {read(DType::kF64, {6}), read_write(narrower, {6})}},
                   "y must have x's shape and be f32 (f64 for f64 x) or bf16");
  }
  expect_refused({"accumulate", {}, {read(DType::kBF16, {6}), read_write(DType::kBF16, {5})}},
                 "y must have x's shape");
}

TEST(CopyAndFillCheck, TakeAnyDtypeAndRank) {
  EXPECT_NO_THROW(check_spec({"copy", {}, {read(DType::kU8, {}), write(DType::kU8, {})}}));
  EXPECT_NO_THROW(
      check_spec({"fill", to_attributes(FillAttributes{}), {write(DType::kI32, {1, 2, 3, 4, 5})}}));
}

TEST(ElementwiseCost, OnlyAdditionsCompute) {
  const OperandSpec x = read(DType::kBF16, {10});
  const OperandSpec y = write(DType::kBF16, {10});
  expect_cost({"add", {}, {x, x, y}}, {.flops = 10, .bytes_read = 40, .bytes_written = 20});
  expect_cost({"accumulate", {}, {x, read_write(DType::kF32, {10})}},
              {.flops = 10, .bytes_read = 60, .bytes_written = 40});
  expect_cost({"copy", {}, {x, y}}, {.bytes_read = 20, .bytes_written = 20});
  expect_cost({"cast", {}, {x, write(DType::kF32, {10})}}, {.bytes_read = 20, .bytes_written = 40});
  expect_cost({"fill", to_attributes(FillAttributes{}), {y}}, {.bytes_written = 20});
}

}  // namespace
}  // namespace braid
