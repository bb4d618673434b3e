#include "ops/mla_qkv.h"

#include "ops/specs.h"

namespace braid {
namespace {

OpSpec mla_spec() {
  const MlaAttributes attributes{
      .heads = 2, .plain = 3, .rotated = 4, .value = 5, .head_size = 8, .sequence = 4};
  return {"mla_qkv",
          to_attributes(attributes),
          {read(DType::kBF16, {8, 14}), read(DType::kBF16, {8, 16}), read(DType::kBF16, {8, 4}),
           write(DType::kBF16, {8, 48})}};
}

TEST(MlaQkvCheck, RefusesHeadsThatDoNotFit) {
  struct BadAttribute {
    const char* name;
    int64_t value;
    const char* message;
  };
  const BadAttribute cases[] = {
      {"heads", 0, "parts of heads must be positive"},
      {"plain", 0, "parts of heads must be positive"},
      {"value", 0, "parts of heads must be positive"},
      {"rotated", 3, "rotated must be even and positive"},
      {"rotated", 0, "rotated must be even and positive"},
      {"head_size", 6, "head_size must hold plain + rotated, and value"},
      {"value", 9, "head_size must hold plain + rotated, and value"},
      {"heads", 3, "the first operand must hold its part of every head"},
      {"sequence", 3, "rows must be a multiple of sequence"},
  };
  for (const BadAttribute& bad : cases) {
    expect_refused(with_attribute(mla_spec(), bad.name, bad.value), bad.message);
  }
}

TEST(MlaQkvCost, ReadsAndWritesTheRowsOnce) {
  expect_cost(mla_spec(), {.flops = 2.0 * 8 * 14,
                           .bytes_read = 2.0 * 8 * (14 + 16 + 4),
                           .bytes_written = 2.0 * 8 * 48});
}

}  // namespace
}  // namespace braid
