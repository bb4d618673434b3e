#include "ops/muon.h"

#include "ops/specs.h"

namespace braid {
namespace {

OpSpec take_spec(DType dtype, int64_t pitch, bool transposed) {
  return {"take_matrix",
          to_attributes(MatrixPlaceAttributes{.pitch = pitch, .transposed = transposed}),
          {read(dtype, {2 * pitch + 5}), write(dtype, transposed ? Shape{5, 3} : Shape{3, 5})}};
}

TEST(TakeMatrix, KnowsTheMatrixInEitherOrder) {
  for (const bool transposed : {false, true}) {
    const OpSpec spec = take_spec(DType::kBF16, 10, transposed);
    EXPECT_NO_THROW(check_spec(spec));
    EXPECT_EQ(matrix_size(spec).rows, 3);
    EXPECT_EQ(matrix_size(spec).columns, 5);
    expect_refused(with_attribute(spec, "transposed", !transposed),
                   "flat must end with the last row");
  }
}

TEST(TakeMatrix, RowsNeitherOverlapNorEndElsewhere) {
  const OpSpec spec = take_spec(DType::kF32, 5, false);
  EXPECT_NO_THROW(check_spec(spec));
  expect_refused(with_attribute(spec, "pitch", int64_t{4}), "rows must not overlap");
  expect_refused(with_operand(spec, 0, read(DType::kF32, {16})), "flat must end with the last row");
  expect_refused(with_operand(spec, 0, read(DType::kBF16, {15})), "flat and x must have one dtype");
}

TEST(MuonMeanCheck, TheMomentIsOfTheTypeThatScalarsSay) {
  OpSpec spec{"muon_mean",
              to_attributes(MuonMeanAttributes{}),
              {read(DType::kF32, {9}), read(DType::kF32, {1}), read(DType::kF32, {4}),
               read_write(DType::kBF16, {9}), write(DType::kBF16, {9})}};
  expect_cost(spec, {.flops = 7 * 9, .bytes_read = 6 * 9 + 20, .bytes_written = 4 * 9});
  expect_refused(with_operand(spec, 2, read(DType::kF32, {3})), "operand exp_avg is bf16 [9]");
  expect_refused(with_operand(spec, 4, write(DType::kF64, {9})), "update must be f32 or bf16");
  expect_refused(with_operand(spec, 4, write(DType::kF32, {8})),
                 "update must have the shape of grad");
}

}  // namespace
}  // namespace braid
