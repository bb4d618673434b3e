#include "ops/blocks.h"

#include "ops/specs.h"

namespace braid {
namespace {

OpSpec sum_of(size_t num_blocks) {
  OpSpec spec{"sum_blocks", {}, std::vector(num_blocks, read(DType::kBF16, {4, 3}))};
  spec.operands.push_back(write(DType::kBF16, {4, 3}));
  return spec;
}

TEST(SumBlocksCheck, TakesOneToSixtyFourBlocks) {
  for (const size_t count : {size_t{1}, size_t{2}, kMaxBlocks}) {
    EXPECT_NO_THROW(check_spec(sum_of(count)));
  }
  expect_refused(sum_of(0), "there must be 1 to 64 x");
  expect_refused(sum_of(kMaxBlocks + 1), "there must be 1 to 64 x");
}

TEST(LargestOfBlocksCheck, TakesIntegersOfOneShape) {
  const OperandSpec x = read(DType::kI32, {4, 3});
  EXPECT_NO_THROW(check_spec({"largest_of_blocks", {}, {x, x, write(DType::kI32, {4, 3})}}));
  expect_refused({"largest_of_blocks", {}, {x, write(DType::kI32, {4, 2})}},
                 "operand y is i32 [4,2], expected i32 [4,3]");
  const OperandSpec wide = read(DType::kF32, {4, 3});
  expect_refused({"largest_of_blocks", {}, {wide, wide, write(DType::kF32, {4, 3})}},
                 "x must be i32");
}

TEST(JoinColumnsCheck, AddsUpTheWidths) {
  const OperandSpec x = read(DType::kF32, {4, 3});
  EXPECT_NO_THROW(check_spec({"join_columns", {}, {x, write(DType::kF32, {4, 3})}}));
  expect_refused({"join_columns", {}, {x, x, write(DType::kF32, {4, 3})}},
                 "operand y is f32 [4,3], expected f32 [4,6]");
  expect_refused({"join_columns", {}, {x, read(DType::kF32, {5, 3}), write(DType::kF32, {4, 6})}},
                 "all x must have one dtype and number of rows");
}

TEST(JoinBlocksCheck, KeepsTheNumberOfElements) {
  const OperandSpec x = read(DType::kF8E4M3, {6, 5});
  EXPECT_NO_THROW(check_spec({"join_blocks", {}, {x, write(DType::kF8E4M3, {2, 15})}}));
  EXPECT_NO_THROW(check_spec({"join_blocks", {}, {x, write(DType::kF8E4M3, {6, 5})}}));
  for (const Shape& shape : {Shape{4, 5}, Shape{2, 14}, Shape{5, 6}}) {
    expect_refused({"join_blocks", {}, {x, write(DType::kF8E4M3, shape)}},
                   "y must have the blocks of rows of x side by side");
  }
  expect_refused({"join_blocks", {}, {x, write(DType::kU8, {2, 15})}}, "one dtype");
}

TEST(BlocksCost, ReadsEachBlockOnce) {
  expect_cost(sum_of(3), {.flops = 24, .bytes_read = 72, .bytes_written = 24});
  expect_cost({"join_columns",
               {},
               {read(DType::kF32, {4, 3}), read(DType::kF32, {4, 2}), write(DType::kF32, {4, 5})}},
              {.bytes_read = 80, .bytes_written = 80});
}

}  // namespace
}  // namespace braid
