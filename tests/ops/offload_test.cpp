#include "ops/offload.h"

#include "ops/specs.h"

namespace braid {
namespace {

TEST(TransferCheck, KeepsDtypeAndShape) {
  for (const char* const op : {"offload", "reload"}) {
    const OperandSpec x = read(DType::kBF16, {6});
    EXPECT_NO_THROW(check_spec({op, {}, {x, write(DType::kBF16, {6})}}));
    EXPECT_NO_THROW(check_spec({op, {}, {read(DType::kU8, {}), write(DType::kU8, {})}}));
    expect_refused({op, {}, {x, write(DType::kF32, {6})}}, "operand y is f32 [6]");
    expect_refused({op, {}, {x, write(DType::kBF16, {2, 3})}}, "operand y is bf16 [2,3]");
  }
}

TEST(TransferCost, CrossesTheLinkToTheHostOnce) {
  for (const char* const op : {"offload", "reload"}) {
    expect_cost({op, {}, {read(DType::kBF16, {10}), write(DType::kBF16, {10})}},
                {.bytes_read = 20, .bytes_written = 20, .host_bytes = 20});
  }
}

TEST(Undefine, TakesAnythingAndCostsNothing) {
  const OpSpec spec{"undefine", {}, {write(DType::kI64, {1, 2, 3, 4})}};
  EXPECT_NO_THROW(check_spec(spec));
  expect_cost(spec, {});
}

TEST(Await, TakesAnythingAndCostsNothing) {
  const OpSpec spec{"await", {}, {read(DType::kI64, {1, 2, 3, 4})}};
  EXPECT_NO_THROW(check_spec(spec));
  expect_cost(spec, {});
}

TEST(DoesNothing, IsTrueForTheTwoThatKeepAPlace) {
  const OpSpec undefine{"undefine", {}, {write(DType::kF32, {3})}};
  const OpSpec await{"await", {}, {read(DType::kF32, {3})}};
  const OpSpec fill{"fill", {}, {write(DType::kF32, {3})}};
  EXPECT_TRUE(does_nothing(undefine) && does_nothing(await));
  EXPECT_TRUE(undefines(undefine));
  EXPECT_FALSE(undefines(await));
  EXPECT_FALSE(does_nothing(fill) || undefines(fill));
  EXPECT_FALSE(does_nothing({"no_such_op", {}, {}}));
}

}  // namespace
}  // namespace braid
