#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace braid {

/// Consecutive rows of one expert that one member dispatches to another, or gets back from it.
struct RowRange {
  int64_t source_row = 0;  ///< among the rows of the member that they belong to
  int64_t holder_row = 0;  ///< among those of the member that has the expert
  int64_t count = 0;
  int64_t in_pair = 0;  ///< among the rows of the pair of members
};

/// Sizes of an exchange of rows of experts (ops/expert_exchange.h).
struct RowMapSizes {
  int64_t members = 1;
  int64_t experts = 1;
  int64_t copies = 1;
  int64_t room = 0;  ///< rows of a member that has experts
  /// Rows that a member can send to another.
  int64_t most_of_pair = std::numeric_limits<int64_t>::max();
};

/// Which rows of experts go where, by the offsets of all members.
class RowMap {
 public:
  RowMap(const int32_t* offsets_of_all, const RowMapSizes& sizes)
      : offsets_(offsets_of_all), sizes_(sizes) {}

  int64_t members() const { return sizes_.members; }
  int64_t copies() const { return sizes_.copies; }
  int64_t room() const { return sizes_.room; }
  int64_t local_experts() const { return sizes_.experts * sizes_.copies / sizes_.members; }
  int64_t first_expert(int64_t holder) const { return holder / sizes_.copies * local_experts(); }

  int64_t offset(int64_t source, int64_t expert) const {
    return offsets_[source * (sizes_.experts + 1) + expert];
  }
  int64_t count(int64_t source, int64_t expert) const {
    return offset(source, expert + 1) - offset(source, expert);
  }

  /// Rows that one member has for the experts of another.
  int64_t count_of_pair(int64_t source, int64_t holder) const {
    const int64_t first = first_expert(holder);
    return offset(source, first + local_experts()) - offset(source, first);
  }

  /// Calls visit(source, local expert, range) for each expert of the holder and each source, in the
  /// order of the holder's rows; rows that do not fit are missing. Returns the number of rows that
  /// it should hold.
  template <class Visit>
  int64_t for_each_range(int64_t holder, Visit&& visit) const {
    int64_t row = 0;
    int64_t came = 0;
    const int64_t first = first_expert(holder);
    for (int64_t e = first; e < first + local_experts(); ++e) {
      for (int64_t source = 0; source < sizes_.members; ++source) {
        const int64_t all = count(source, e);
        const int64_t in_pair = offset(source, e) - offset(source, first);
        const int64_t sent = std::clamp<int64_t>(sizes_.most_of_pair - in_pair, 0, all);
        const int64_t kept = std::clamp<int64_t>(sizes_.room - row, 0, sent);
        visit(source, e - first, RowRange{offset(source, e), row, kept, in_pair});
        row += sent;
        came += all;
      }
    }
    return came;
  }

 private:
  const int32_t* offsets_;
  RowMapSizes sizes_;
};

}  // namespace braid
