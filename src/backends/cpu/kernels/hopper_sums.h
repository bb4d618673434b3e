#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/float8.h"

/// Sums of products as the tensor cores of Hopper (sm_90) form them, bit for bit. Source: MMA-Sim
/// (arXiv 2511.10909), which found the rules by probing an H100; DeepSeek-V3 (arXiv 2412.19437,
/// 3.3.2) saw the same 14 bits.
namespace braid {

/// A number of a narrow format as a multiplier sees it: significand * 2^(exponent - 7), with a
/// significand in [128, 256) for normal numbers. Subnormal numbers have the format's least
/// exponent and a smaller significand.
struct SplitNumber {
  static constexpr int kFractionBits = 7;
  static constexpr int16_t kZero = -4096;  ///< the exponent of 0: never the largest
  /// The exponent of NaN (significand 0) and infinity (+-1): the largest, even with that of 0.
  static constexpr int16_t kNotFinite = 16384;

  int16_t significand = 0;
  int16_t exponent = kZero;
};

SplitNumber split_number(Float8E4M3 value);
SplitNumber split_number(Float8E5M2 value);
SplitNumber split_number(BFloat16 value);

/// One instruction: c + a[0] b[0] + ... of at most `depth` products.
///
/// Let e be the largest exponent of c and of the products, where the exponent of a product is the
/// sum of its factors' exponents, without normalisation: its significand is in [1, 4). Each term is
/// truncated toward zero to a multiple of 2^(e - term_bits). The sum of the terms is exact, and is
/// truncated toward zero to a float with `result_bits` of fraction. NaN is 0x7FFFFFFF.
struct TensorCore {
  int64_t depth = 32;
  int term_bits = 13;
  int result_bits = 13;
};
inline constexpr TensorCore kHopperFp8{.depth = 32, .term_bits = 13, .result_bits = 13};
inline constexpr TensorCore kHopperBf16{.depth = 16, .term_bits = 25, .result_bits = 23};

/// The accumulator after as many instructions as `count` products need, from first to last; it
/// begins at `c`.
float tensor_core_sum(const TensorCore& core, const SplitNumber* a, const SplitNumber* b,
                      int64_t count, float c = 0.0F);

}  // namespace braid
