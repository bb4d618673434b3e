#include "ops/collectives.h"

#include "ops/specs.h"

namespace braid {
namespace {

OpSpec all_reduce_spec(int64_t group, DType dtype) {
  return {
      "all_reduce", to_attributes(AllReduceAttributes{.group = group}), {read_write(dtype, {100})}};
}

TEST(AllReduceCost, GivesTheBytesOfOneRanksOperand) {
  expect_cost(all_reduce_spec(0, DType::kF32),
              {.bytes_read = 400, .bytes_written = 400, .comm_bytes = 400});
  expect_cost(all_reduce_spec(3, DType::kBF16),
              {.bytes_read = 200, .bytes_written = 200, .comm_bytes = 200});
}

TEST(AllReduceCheck, GroupIsAnIndex) {
  expect_refused(all_reduce_spec(-1, DType::kF32),
                 "group must be an index into the program's groups");
}

TEST(AllReduceCheck, SumsFloatingPointOnly) {
  expect_refused(all_reduce_spec(0, DType::kI32), "operand x is i32, expected floating point");
}

}  // namespace
}  // namespace braid
