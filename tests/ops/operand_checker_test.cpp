#include "ops/operand_checker.h"

#include "ops/specs.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

const OpSpec kSpec{.op = "thing",
                   .attributes = {},
                   .operands = {read(DType::kBF16, {4, 6}), read_write(DType::kF32, {4})}};

TEST(OperandChecker, TakesOperandsInOrder) {
  OperandChecker operands(kSpec);
  EXPECT_EQ(operands.next("x", Access::kRead, 2), kSpec.operands[0]);
  EXPECT_NO_THROW(operands.expect("sum", Access::kReadWrite, DType::kF32, {4}));
  EXPECT_NO_THROW(operands.done());
}

TEST(OperandChecker, NamesOperandFoundAndExpected) {
  const auto message = [](auto&& call) {
    OperandChecker operands(kSpec);
    return message_of<InternalError>([&] { call(operands); });
  };
  EXPECT_EQ(message([](auto& o) { o.next("x", Access::kRead, 3); }),
            "op thing: operand x has shape [4,6], expected 3 dimensions");
  EXPECT_EQ(message([](auto& o) { o.next("x", Access::kWrite, 2); }),
            "op thing: operand x has access 0, expected 1");
  EXPECT_EQ(message([](auto& o) {
              o.expect("x", Access::kRead, DType::kF32, {4, 7});
            }),
            "op thing: operand x is bf16 [4,6], expected f32 [4,7]");
  EXPECT_EQ(message([](auto& o) { o.require(false, "x must be nice"); }),
            "op thing: x must be nice");
  EXPECT_EQ(message([](auto& o) { o.done(); }), "op thing has 2 operands, expected 0");
}

TEST(OperandChecker, NamesAMissingOperand) {
  OperandChecker operands(kSpec);
  operands.next("x", Access::kRead, 2);
  operands.next("sum", Access::kReadWrite, 1);
  EXPECT_EQ(message_of<InternalError>([&] { operands.next("y", Access::kWrite, 1); }),
            "op thing: operand 2 (y) is missing");
}

TEST(AccumulatorDtype, IsF64ForF64AndElseF32) {
  EXPECT_EQ(accumulator_dtype(DType::kF64), DType::kF64);
  EXPECT_EQ(accumulator_dtype(DType::kF32), DType::kF32);
  EXPECT_EQ(accumulator_dtype(DType::kBF16), DType::kF32);
}

TEST(OperandBytes, CountReadWriteTwice) {
  const OpCost cost = operand_bytes(kSpec);
  EXPECT_EQ(cost.bytes_read, 4 * 6 * 2 + 4 * 4);
  EXPECT_EQ(cost.bytes_written, 4 * 4);
  EXPECT_EQ(cost.flops, 0);
  EXPECT_EQ(cost.comm_bytes, 0);
}

TEST(ElementwiseCost, CountsElementsOfTheFirstOperand) {
  EXPECT_EQ(elementwise_cost<5>(kSpec).flops, 5 * 4 * 6);
  EXPECT_EQ(elems(kSpec, 1), 4);
}

}  // namespace
}  // namespace braid
