#include "ops/cached_attention.h"

#include "ops/integer_values.h"
#include "ops/specs.h"

namespace braid {
namespace {

/// Three rows of each of two sequences, of which 7 tokens have room.
OpSpec cached_spec() {
  return {"cached_attention",
          to_attributes(CachedAttentionAttributes{.heads = 4, .kv_heads = 2, .head_size = 3}),
          {read(DType::kBF16, {6, 24}), read(DType::kI32, {2}), read(DType::kI32, {2}),
           read_write(DType::kBF16, {2, 7, 6}), read_write(DType::kBF16, {2, 7, 6}),
           write(DType::kBF16, {6, 12})}};
}

TEST(CachedAttentionCheck, RefusesHeadsAndCachesThatDoNotFit) {
  expect_refused(with_attribute(cached_spec(), "kv_heads", int64_t{3}),
                 "heads must be a positive multiple of kv_heads");
  expect_refused(with_attribute(cached_spec(), "head_size", int64_t{4}),
                 "a row of qkv must hold heads + 2 kv_heads heads");
  OpSpec small = cached_spec();
  small.operands[3].shape = small.operands[4].shape = {2, 2, 6};
  expect_refused(small, "the capacity must hold the rows of a sequence");
}

// All new rows fit behind the tokens that a cache already has.
TEST(CachedAttention, NeedsSpansInsideOfItsCaches) {
  EXPECT_EQ(integer_need(cached_spec(), 1).limit, 5);
  EXPECT_EQ(integer_need(cached_spec(), 2).limit, 4);
}

// Two products of 6 rows and 12 columns with half of 7 keys.
TEST(CachedAttentionCost, IsThatOfCachesThatAreFullByHalf) {
  expect_cost(cached_spec(), {.flops = 2 * 2.0 * 6 * 12 * 3.5,
                              .bytes_read = 2.0 * (6 * 24 + 2 * 7 * 6),
                              .bytes_written = 2.0 * (6 * 12 + 2 * 6 * 6)});
}

}  // namespace
}  // namespace braid
