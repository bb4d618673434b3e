#include "ops/rope.h"

#include "ops/specs.h"

namespace braid {
namespace {

OpSpec rope_spec() {
  const RopeAttributes attributes{.heads = 4, .kv_heads = 2, .head_size = 6, .sequence = 4};
  return {"rope",
          to_attributes(attributes),
          {read(DType::kBF16, {8, 48}), write(DType::kBF16, {8, 48})}};
}

TEST(RopeCheck, RefusesHeadsThatDoNotFit) {
  struct BadAttribute {
    const char* name;
    int64_t value;
    const char* message;
  };
  const BadAttribute cases[] = {
      {"head_size", 7, "head_size must be even and positive"},
      {"head_size", 0, "head_size must be even and positive"},
      {"head_size", -6, "head_size must be even and positive"},
      {"head_size", 8, "a row must hold heads + 2 kv_heads heads"},
      {"heads", 0, "heads and kv_heads must be positive"},
      {"kv_heads", 0, "heads and kv_heads must be positive"},
      {"kv_heads", 1, "a row must hold heads + 2 kv_heads heads"},
      {"sequence", 3, "rows must be a multiple of sequence"},
      {"sequence", 0, "rows must be a multiple of sequence"},
  };
  for (const BadAttribute& bad : cases) {
    expect_refused(with_attribute(rope_spec(), bad.name, bad.value), bad.message);
  }
}

TEST(RopeCheck, RefusesRotatedElementsThatAHeadDoesNotHave) {
  for (const int64_t rotated : {3, 8, -2}) {
    OpSpec spec = rope_spec();
    spec.attributes.push_back({"rotated", rotated});
    expect_refused(spec, "rotated must be even, and at most head_size");
  }
}

TEST(RopeCheck, RefusesNegativeHeadsThatAddUpToTheRow) {
  expect_refused(
      with_attribute(with_attribute(rope_spec(), "heads", int64_t{-2}), "kv_heads", int64_t{5}),
      "heads and kv_heads must be positive");
}

TEST(RopeCost, ReadsAndWritesTheRowsOnce) {
  expect_cost(rope_spec(),
              {.flops = 3.0 * 8 * 48, .bytes_read = 2.0 * 8 * 48, .bytes_written = 2.0 * 8 * 48});
}

}  // namespace
}  // namespace braid
