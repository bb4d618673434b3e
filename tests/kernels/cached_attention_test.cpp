#include "ops/attention.h"
#include "support/cached_cases.h"

namespace braid {
namespace {

/// Rows [begin, begin + count) of a matrix.
std::vector<double> rows_of(const std::vector<double>& matrix, int64_t width, int64_t begin,
                            int64_t count) {
  return {matrix.begin() + begin * width, matrix.begin() + (begin + count) * width};
}

/// A sequence of `capacity` tokens, in runs of up to `rows` of them, gives what attention of the
/// whole gives.
void expect_whole_attention(const CachedAttentionCase& c, DType dtype) {
  const AttentionAttributes a{.heads = c.a.heads,
                              .kv_heads = c.a.kv_heads,
                              .head_size = c.a.head_size,
                              .sequence = c.capacity,
                              .scale = c.a.scale,
                              .window = c.a.window};
  const int64_t tokens = c.sequences * c.capacity;
  KernelCase whole({"attention",
                    to_attributes(a),
                    {read(dtype, {tokens, c.qkv_width()}), write(dtype, {tokens, c.out_width()}),
                     write(wide(dtype), {c.sequences, c.a.heads, c.capacity})}});
  whole.run();
  const std::vector<double> qkv = whole.values(0);
  const std::vector<double> expected = whole.values(1);
  KernelCase cached = c.make(dtype);
  for (int64_t begin = 0; begin < c.capacity; begin += c.rows) {
    const int64_t count = std::min(c.rows, c.capacity - begin);
    std::vector<double> rows;
    std::vector<double> out;
    for (int64_t sequence = 0; sequence < c.sequences; ++sequence) {
      const auto append = [&](std::vector<double>& to, const std::vector<double>& from,
                              int64_t width, double padding) {
        const auto part = rows_of(from, width, sequence * c.capacity + begin, count);
        to.insert(to.end(), part.begin(), part.end());
        to.resize(to.size() + static_cast<size_t>((c.rows - count) * width), padding);
      };
      append(rows, qkv, c.qkv_width(), std::nan(""));
      append(out, expected, c.out_width(), 0.0);
    }
    cached.set(0, rows);
    cached.set_all(1, static_cast<double>(begin));
    cached.set_all(2, static_cast<double>(count));
    cached.run(2);
    // Both are rounded, perhaps to either side of the middle between two values.
    expect_close(
        cached.values(5), out,
        {.absolute = 32 * rounding_error(wide(dtype)), .relative = 2 * rounding_error(dtype)});
  }
}

TEST(CachedAttention, GivesTheAttentionOfTheWholeSequence) {
  for (const DType dtype : kFloatDtypes) {
    for (const CachedAttentionCase& c : awkward_cached_attention_cases()) {
      expect_whole_attention(c, dtype);
    }
  }
}

// A sequence without new rows keeps its cache, and one that begins ignores what is there.
TEST(CachedAttention, LeavesASequenceWithoutRowsAsItIs) {
  const CachedAttentionCase c{{.heads = 2, .kv_heads = 1, .head_size = 2, .scale = 0.7}, 2, 3, 5};
  KernelCase cached = c.make(DType::kF32);
  const std::vector<double> keys = cached.values(3);
  cached.set(1, {4, 0});
  cached.set(2, {0, 2});
  cached.run();
  EXPECT_EQ(rows_of(cached.values(3), 2, 0, 5), rows_of(keys, 2, 0, 5));
  EXPECT_EQ(rows_of(cached.values(3), 2, 7, 3), rows_of(keys, 2, 7, 3));
  EXPECT_NE(rows_of(cached.values(3), 2, 5, 2), rows_of(keys, 2, 5, 2));
  EXPECT_EQ(rows_of(cached.values(5), 4, 0, 3), std::vector<double>(12, 0.0));
  EXPECT_EQ(rows_of(cached.values(5), 4, 5, 1), std::vector<double>(4, 0.0));
  // The first token sees itself alone: its value.
  const std::vector<double> qkv = cached.values(0);
  EXPECT_FLOAT_EQ(static_cast<float>(cached.values(5)[12]), static_cast<float>(qkv[3 * 8 + 6]));
}

}  // namespace
}  // namespace braid
