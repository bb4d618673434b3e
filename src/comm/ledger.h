#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm_call.h"
#include "comm/meeting.h"

namespace braid {

/// What each rank has asked for: the call it began last, in any group, and those that it is in. So
/// a rank that is missing somewhere can be described, and also for whom it waits itself.
class Ledger {
 public:
  explicit Ledger(int num_ranks) : ranks_(static_cast<size_t>(num_ranks)) {}

  int num_ranks() const { return static_cast<int>(ranks_.size()); }

  /// Room for such a call, so that noting it later allocates nothing.
  void reserve(int rank, const CommCall& call);

  void begin(int rank, const Meeting& meeting, const CommCall& call);
  void end(int rank, const Meeting& meeting);

  bool is_in_call(int rank) const { return !of(rank).open.empty(); }

  /// What the ledger of another process says of its rank; to be used in the next description.
  struct Told {
    std::string description;  ///< describe_rank
    std::vector<int> awaited;
  };
  void tell(int rank, Told told) { ranks_[static_cast<size_t>(rank)].told = std::move(told); }

  /// Ranks that are missing where this one waits.
  std::vector<int> awaited(int rank) const;

  /// "last call ... in group data, call 7, finished".
  std::string describe_rank(int rank) const;

  /// "for rank 2; rank 2: last call ... in group data, call 7, finished": who is missing where
  /// party `party` of `meeting` waits, and what they do, and so on for all for whom they wait.
  std::string describe_missing(const Meeting& meeting, size_t party) const;

 private:
  struct OpenCall {
    const Meeting* meeting = nullptr;
    const CommCall* call = nullptr;
    int64_t number = 0;  ///< counted from 1 in its meeting
  };
  struct Rank {
    int64_t num_calls = 0;
    CommCall last;        ///< copy of the call that began last; its group may be gone
    OpenCall last_place;  ///< of that call, which may be gone, too
    std::vector<OpenCall> open;
    std::optional<Told> told;  ///< of a rank in another process
  };

  const Rank& of(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  static bool waits(const OpenCall& open) { return open.meeting->num_met < open.number; }
  static std::string describe_open(const OpenCall& open);

  std::vector<Rank> ranks_;
};

}  // namespace braid
