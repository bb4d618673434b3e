#pragma once

#include <cstdint>

namespace braid {

/// Positions of the tokens of a sequence, or of a rank's part of it: two runs of consecutive
/// positions, for the first `split` tokens from `first_begin`, for the others from `second_begin`.
/// Default: token t is at position t.
struct TokenPositions {
  int64_t first_begin = 0;
  int64_t second_begin = 0;
  int64_t split = 0;

  int64_t of(int64_t token) const {
    return token < split ? first_begin + token : second_begin + token - split;
  }
  /// One more than the largest position of `tokens` tokens.
  int64_t end(int64_t tokens) const {
    const int64_t first_end = split > 0 ? of(split - 1) + 1 : 0;
    const int64_t second_end = tokens > split ? of(tokens - 1) + 1 : 0;
    return first_end > second_end ? first_end : second_end;
  }
  /// How many of `tokens` tokens are at positions before `position`. Requires ascending positions.
  int64_t before(int64_t position, int64_t tokens) const {
    const auto of_run = [position](int64_t begin, int64_t count) {
      const int64_t below = position - begin;
      return below < 0 ? 0 : below < count ? below : count;
    };
    return of_run(first_begin, split) + of_run(second_begin, tokens - split);
  }
  /// Whether they are valid positions of `tokens` tokens; the runs must not overlap.
  bool fits(int64_t tokens) const {
    const int64_t count = tokens - split;
    return first_begin >= 0 && second_begin >= 0 && split >= 0 && split <= tokens &&
           (split == 0 || count == 0 || first_begin + split <= second_begin ||
            second_begin + count <= first_begin);
  }

  /// The positions of the tokens [begin, begin + count).
  TokenPositions part(int64_t begin, int64_t count) const {
    const int64_t in_first = split <= begin ? 0 : split - begin < count ? split - begin : count;
    return {.first_begin = in_first > 0 ? of(begin) : 0,
            .second_begin = in_first < count ? of(begin + in_first) : 0,
            .split = in_first};
  }

  friend bool operator==(const TokenPositions&, const TokenPositions&) = default;

  void fields(auto&& visit) {
    visit("first_begin", first_begin);
    visit("second_begin", second_begin);
    visit("split", split);
  }
};

}  // namespace braid
