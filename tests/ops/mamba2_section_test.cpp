#include "ops/mamba2_section.h"

#include "ops/specs.h"

namespace braid {
namespace {

constexpr Mamba2Attributes kSizes{.sequence = 4,
                                  .heads = 4,
                                  .head_size = 3,
                                  .groups = 2,
                                  .state = 5,
                                  .chunk = 2,
                                  .norm_groups = 2};

OpSpec states_spec(int64_t taps) {
  constexpr DType kData = DType::kBF16;
  return {"mamba2_section_states",
          to_attributes(kSizes),
          {read(kData, {8, 48}), read(kData, {32, taps}), read(kData, {32}), read(kData, {4}),
           read(kData, {4}), read(kData, {4}), read(kData, {12}), read(kData, {2 * (taps - 1), 32}),
           write(DType::kF32, {2, 64})}};
}

TEST(Mamba2Section, IsAtLeastAsLongAsWhatIsReadInFrontOfIt) {
  EXPECT_NO_THROW(check_spec(states_spec(4)));
  EXPECT_NO_THROW(check_spec(states_spec(5)));
  expect_refused(states_spec(6), "as many rows as the convolution reads in front of it");
  expect_refused(states_spec(1), "at least 1");
}

TEST(Mamba2LastInputs, AreColumnsBehindZ) {
  const OpSpec last{"mamba2_last_inputs",
                    to_attributes(Mamba2InputsAttributes{.inner = 12, .sequence = 4, .rows = 3}),
                    {read(DType::kBF16, {8, 48}), write(DType::kBF16, {6, 32})}};
  EXPECT_NO_THROW(check_spec(last));
  expect_refused(with_attribute(last, "rows", int64_t{5}), "must be at least `rows`");
  expect_refused(with_attribute(last, "inner", int64_t{17}), "of the columns behind inner");
  expect_refused(with_attribute(last, "sequence", int64_t{3}), "rows must be a multiple");
  expect_cost(last, {.flops = 0, .bytes_read = 6 * 32 * 2, .bytes_written = 6 * 32 * 2});
}

// Per row: the convolution of 32 channels by 4 taps, and a state of 15 elements per head.
TEST(Mamba2SectionStates, CostLessThanTheLayer) {
  constexpr double kPerRow = 2 * 32 * 4 + 4 * 2 * 15;
  expect_cost(states_spec(4), {.flops = 8 * kPerRow,
                               .bytes_read = 2.0 * (8 * 48 + 32 * 4 + 32 + 3 * 4 + 12 + 6 * 32),
                               .bytes_written = 4.0 * 2 * 64});
}

}  // namespace
}  // namespace braid
