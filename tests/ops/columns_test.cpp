#include "ops/columns.h"

#include "ops/specs.h"

namespace braid {
namespace {

OpSpec take_spec() {
  return {"take_columns",
          to_attributes(ColumnsAttributes{.runs = 3, .width = 5, .begin = 1, .size = 2}),
          {read(DType::kBF16, {4, 15}), write(DType::kBF16, {4, 6})}};
}

TEST(ColumnsCheck, RefusesColumnsThatAreNotThere) {
  const std::string outside = "columns [begin, begin + size) must lie in a run of width";
  expect_refused(with_attribute(take_spec(), "begin", int64_t{4}), outside);
  expect_refused(with_attribute(take_spec(), "begin", int64_t{-1}), outside);
  expect_refused(with_attribute(take_spec(), "size", int64_t{0}), outside);
  expect_refused(with_attribute(take_spec(), "runs", int64_t{0}), outside);
  expect_refused(with_attribute(take_spec(), "width", int64_t{6}),
                 "a row must hold runs * width columns");
}

TEST(ColumnsCost, CopiesAreNoArithmetic) {
  expect_cost(take_spec(), {.flops = 0, .bytes_read = 2.0 * 60, .bytes_written = 2.0 * 24});
}

}  // namespace
}  // namespace braid
