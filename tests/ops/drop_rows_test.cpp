#include "ops/drop_rows.h"

#include "ops/expert_exchange.h"
#include "ops/forward_graph.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr DType kI32 = DType::kI32;
constexpr DType kF32 = DType::kF32;

/// 4 tokens with 2 experts each, of 3.
OpSpec drop_spec() {
  return {"drop_rows",
          to_attributes(DropRowsAttributes{.capacity = 2}),
          {read(kF32, {4, 2}), read(kI32, {4, 2}), read(kI32, {8}), read(kI32, {4}),
           write(kI32, {4, 2}), write(kI32, {8}), write(kI32, {4})}};
}

OpSpec watched_spec() {
  OpSpec spec = drop_spec();
  spec.attributes = to_attributes(DropRowsAttributes{.capacity = 2, .watch = {true}});
  spec.operands.push_back(tally_spec(RoomTally::kSize));
  return spec;
}

TEST(DropRowsCheck, RefusesSizesThatContradictEachOther) {
  expect_refused(with_operand(drop_spec(), 0, read(DType::kBF16, {4, 2})), "must be f32 or f64");
  expect_refused(with_operand(drop_spec(), 1, read(kI32, {2, 4})), "operand row_of");
  expect_refused(with_operand(drop_spec(), 2, read(kI32, {7})), "operand pair_of");
  expect_refused(with_operand(drop_spec(), 3, read(kI32, {1})), "of at least one expert");
  expect_refused(with_operand(drop_spec(), 6, write(kI32, {5})), "operand kept_offsets");
  expect_refused(with_operand(watched_spec(), 7, tally_spec(4)), "operand tally");
  OpSpec none = drop_spec();
  none.attributes = to_attributes(DropRowsAttributes{.capacity = 0});
  expect_refused(none, "capacity must lie in [1, 2^31)");
}

// The rows of pairs follow from the pairs of rows.
TEST(DropRowsCost, ReadsWeightsAndOneMap) {
  const double read = 4 * 8 + 4 * 8 + 4 * 4;
  EXPECT_EQ(spec_cost(drop_spec()).bytes_read, read);
  EXPECT_EQ(spec_cost(drop_spec()).bytes_written, read);
}

TEST(DropRowsTally, IsThatOfARoomAndCostsNothing) {
  EXPECT_EQ(tally_kind(watched_spec()), TallyKind::kRowRoom);
  EXPECT_EQ(without_tally(watched_spec()), drop_spec());
  EXPECT_EQ(spec_cost(watched_spec()).bytes_written, spec_cost(drop_spec()).bytes_written);
}

TEST(ValidIntegers, OfDroppedRows) {
  const std::vector<int32_t> row_of = valid_integers(drop_spec(), 1);
  const std::vector<int32_t> pair_of = valid_integers(drop_spec(), 2);
  for (size_t row = 0; row < pair_of.size(); ++row) {
    EXPECT_EQ(row_of.at(static_cast<size_t>(pair_of[row])), static_cast<int32_t>(row));
  }
  EXPECT_EQ(valid_integers(drop_spec(), 3), (std::vector<int32_t>{0, 2, 5, 8}));
}

}  // namespace
}  // namespace braid
