#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/positions.h"

/// Sliding windows of attention. A query sees the keys at the last `window` positions, its own
/// included, as with sliding_window of Hugging Face's Mistral; causality and documents hold
/// besides. Absent: there is no such limit. Source: Jiang et al., Mistral 7B, 2023.
namespace braid {

struct AttentionWindow {
  int64_t window = 0;  ///< 0: no limit
  friend bool operator==(const AttentionWindow&, const AttentionWindow&) = default;
  void fields(auto&& visit) { visit("window", window); }

  bool is_on() const { return window > 0; }
  /// The first position that a query at `position` sees, if there is a window; may be negative.
  int64_t first_position(int64_t position) const { return position - window + 1; }
  /// Whether it hides a key from a query of a sequence of `tokens` tokens.
  bool hides(int64_t tokens) const { return is_on() && window < tokens; }
  /// The mean number of keys that a query of a causal sequence sees.
  double mean_keys(int64_t tokens) const {
    if (!hides(tokens)) {
      return 0.5 * static_cast<double>(tokens + 1);
    }
    const auto keys = static_cast<double>(window);
    return keys - 0.5 * keys * (keys - 1) / static_cast<double>(tokens);
  }
  /// Tokens of a causal sequence without a window whose queries see as many keys on average.
  int64_t equal_tokens(int64_t tokens) const {
    return hides(tokens)
               ? std::clamp<int64_t>(2 * static_cast<int64_t>(mean_keys(tokens)) - 1, 1, tokens)
               : tokens;
  }
};

/// Of a part of the queries of a sequence.
struct StepWindow {
  AttentionWindow limit = {};
  TokenPositions query_positions = {};  ///< of all queries of the op; they ascend
  friend bool operator==(const StepWindow&, const StepWindow&) = default;
  void fields(auto&& visit) {
    limit.fields(visit);
    visit("query_first_begin", query_positions.first_begin);
    visit("query_second_begin", query_positions.second_begin);
    visit("query_split", query_positions.split);
  }

  bool is_on() const { return limit.is_on(); }
  int64_t first_position(int64_t query) const {
    return limit.first_position(query_positions.of(query));
  }
};

}  // namespace braid
