#include "ops/mamba2.h"

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
constexpr int64_t kNumRows = 8;
constexpr int64_t kRowElems = 12 + 32 + 4;

OpSpec mamba2_spec() {
  constexpr DType kData = DType::kBF16;
  return {"mamba2",
          to_attributes(kSizes),
          {read(kData, {kNumRows, kRowElems}), read(kData, {32, 4}), read(kData, {32}),
           read(kData, {4}), read(kData, {4}), read(kData, {4}), read(kData, {12}),
           write(kData, {kNumRows, 12}), write(DType::kF32, {kNumRows, 2}),
           write(kData, {kNumRows, 12})}};
}

TEST(Mamba2Check, RefusesSizesThatDoNotFit) {
  struct BadAttribute {
    const char* name;
    AttributeValue value;
    const char* message;
  };
  const BadAttribute cases[] = {
      {"heads", int64_t{0}, "heads, head_size, state and chunk must be positive"},
      {"chunk", int64_t{0}, "heads, head_size, state and chunk must be positive"},
      {"groups", int64_t{3}, "groups must divide heads"},
      {"norm_groups", int64_t{5}, "norm_groups must divide heads x head_size"},
      {"dt_min", -1.0, "dt_min must be from 0 to dt_max"},
      {"dt_max", -0.5, "dt_min must be from 0 to dt_max"},
      {"epsilon", 0.0, "epsilon must be positive"},
      {"state", int64_t{4}, "a row must hold z, x, B, C and dt"},
      {"sequence", int64_t{3}, "rows must be a multiple of sequence"},
  };
  for (const BadAttribute& bad : cases) {
    expect_refused(with_attribute(mamba2_spec(), bad.name, bad.value), bad.message);
  }
  Mamba2Attributes parts = kSizes;
  parts.weights = {.count = 2, .index = 1};
  OpSpec of_one_part = mamba2_spec();
  of_one_part.attributes = to_attributes(parts);
  expect_refused(of_one_part, "a row for each of x, B and C");
  expect_refused(with_attribute(of_one_part, "weight_part", int64_t{2}),
                 "weight_part must be one of weight_parts");
  OpSpec no_taps = mamba2_spec();
  no_taps.operands[1].shape = {31, 4};
  expect_refused(no_taps, "a row for each of x, B and C");
}

// Per row: C B^T of 2 groups over a chunk of 2, their products with x, states in and out, and the
// convolution of 32 channels by 4 taps.
TEST(Mamba2Cost, IsThatOfSumsOverChunks) {
  constexpr double kPerRow = 2 * 2 * 2 * 5 + 4 * (2 * 2 * 3 + 4 * 3 * 5) + 2 * 32 * 4;
  expect_cost(mamba2_spec(), {.flops = kNumRows * kPerRow,
                              .bytes_read = 2.0 * (kNumRows * kRowElems + 32 * 4 + 32 + 3 * 4 + 12),
                              .bytes_written = 2.0 * kNumRows * 2 * 12 + 4.0 * kNumRows * 2});
}

}  // namespace
}  // namespace braid
