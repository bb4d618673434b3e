#pragma once

#include <cstdint>
#include <string_view>

#include "ops/graph.h"

/// Caches let a forward continue sequences without their earlier tokens: blocks that mix tokens
/// keep what later tokens need of earlier ones in buffers that last from run to run. A run brings R
/// rows for each of B sequences. Ops with a cache read begins i32 [B], the tokens of each sequence
/// that the cache already has, and counts i32 [B], how many of the R rows are its next tokens; the
/// others are padding. With begins[b] = 0 a sequence starts, whatever the cache holds; with
/// counts[b] = 0 it stays as it is. begins[b] + counts[b] must not exceed the capacity C.
namespace braid {

/// Sizes of the caches of a forward.
struct TokenCache {
  int64_t capacity = 0;  ///< C, tokens of a sequence
  friend bool operator==(const TokenCache&, const TokenCache&) = default;
};

/// Inputs of a forward with caches.
inline constexpr std::string_view kCacheBegins = "cache_begins";
inline constexpr std::string_view kCacheCounts = "cache_counts";

struct CacheOperands {
  ValueId begins;
  ValueId counts;
  int64_t sequences = 0;  ///< B
  int64_t capacity = 0;   ///< C
};

}  // namespace braid
