#pragma once

#include <cstdint>

namespace braid {

/// Maps between P pairs and N rows, row_of i32 [P] and pair_of i32 [N], that leave some of both
/// out. A pair without a row has row_of = N, or N + 1 if it should have one but lacks room: where
/// rows are summed, the former adds 0 and the latter NaN, so that nobody takes the sum for a valid
/// one. A row of no pair has pair_of = P; it is neither read nor written.
inline constexpr int64_t kNoRow = 0;      ///< behind the last row
inline constexpr int64_t kLacksRoom = 1;  ///< the same

/// An attribute of ops that move rows (ops/expert_rows.h).
struct PartialMaps {
  /// Rows of some pair by which the op is priced; 0: the maps are not partial.
  int64_t expected_rows = 0;
  bool are_partial() const { return expected_rows > 0; }
  void fields(auto&& visit) { visit("expected_rows", expected_rows); }
  friend bool operator==(const PartialMaps&, const PartialMaps&) = default;
};

}  // namespace braid
