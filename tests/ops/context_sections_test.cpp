#include "ops/context_sections.h"

#include "ops/specs.h"

namespace braid {
namespace {

constexpr ContextSections kContext{.ranks = 3, .index = 1, .sections = 2};

TEST(ContextSections, OutOfRangeIsRefused) {
  const OpSpec neighbours{
      "neighbour_sections",
      to_attributes(NeighbourSectionsAttributes{.context = kContext, .rows = 2}),
      {read(DType::kBF16, {24, 5}), write(DType::kBF16, {8, 5})}};
  EXPECT_NO_THROW(check_spec(neighbours));
  struct BadAttribute {
    const char* name;
    int64_t value;
  };
  for (const BadAttribute bad : {BadAttribute{"ranks", 0},
                                 {"index", 3},
                                 {"index", -1},
                                 {"inner", 2},
                                 {"sections", 3},
                                 {"sections", 1}}) {
    expect_refused(with_attribute(neighbours, bad.name, bad.value),
                   "index must be that of one of the ranks");
  }
  expect_refused(with_attribute(neighbours, "rows", int64_t{0}), "for each section of all ranks");
  expect_refused(with_attribute(neighbours, "rows", int64_t{3}), "for each section of all ranks");
}

TEST(CarryStates, NeedsAFactorForEachHead) {
  const OpSpec carry{"carry_states",
                     to_attributes(CarryStatesAttributes{.context = kContext, .heads = 2}),
                     {read(DType::kF32, {12, 10}), write(DType::kF32, {4, 8})}};
  EXPECT_NO_THROW(check_spec(carry));
  expect_refused(with_attribute(carry, "heads", int64_t{3}), "a state and a factor for each head");
  expect_refused(with_attribute(carry, "heads", int64_t{10}), "a state and a factor for each head");
  OpSpec rounded = carry;
  rounded.operands[0].dtype = DType::kBF16;
  expect_refused(rounded, "states must be f32 or f64");
}

// Each rank reads what all ranks gathered.
TEST(CarryStates, CostsWhatItReads) {
  expect_cost({"carry_states",
               to_attributes(CarryStatesAttributes{.context = kContext, .heads = 2}),
               {read(DType::kF32, {12, 10}), write(DType::kF32, {4, 8})}},
              {.flops = 240, .bytes_read = 480, .bytes_written = 128});
}

}  // namespace
}  // namespace braid
