#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm_call.h"
#include "comm/meeting.h"

namespace braid {

/// "rank 3", "ranks 1, 3".
std::string name_ranks(const std::vector<int>& ranks);

/// The state of a rank for which another rank waits.
struct RankAccount {
  std::string description;   ///< a clause: "waits with ... for rank 2"
  std::vector<int> awaited;  ///< ranks for which this one waits
};

/// "for rank 2; rank 2: last call ..., finished": the ranks for which `rank` waits, what they do,
/// and likewise the ranks for which these wait. Calls `account_of` once per rank, and never for
/// `rank`.
std::string describe_missing(int rank, std::vector<int> missing,
                             const std::function<RankAccount(int)>& account_of);

/// The calls of each rank: the last one that it began, in any group, and those in progress. With it
/// an error message can say what a missing rank does and for whom it waits.
class Ledger {
 public:
  explicit Ledger(int num_ranks) : ranks_(static_cast<size_t>(num_ranks)) {}

  int num_ranks() const { return static_cast<int>(ranks_.size()); }

  /// Reserves memory for such a call, so that recording it later allocates nothing.
  void reserve(int rank, const CommCall& call);

  void begin(int rank, const Meeting& meeting, const CommCall& call);
  void end(int rank, const Meeting& meeting);

  bool is_in_call(int rank) const { return !of(rank).open.empty(); }

  /// Stores the account of a rank that another process reported, for the next description.
  void tell(int rank, RankAccount told) {
    ranks_[static_cast<size_t>(rank)].told = std::move(told);
  }

  /// "last call ... in group data, call 7, finished", and the ranks for which it waits.
  RankAccount account(int rank) const;

  /// The missing ranks where party `party` of `meeting` waits, as text of the free function of this
  /// name.
  std::string describe_missing(const Meeting& meeting, size_t party) const;

 private:
  struct OpenCall {
    const Meeting* meeting = nullptr;
    const CommCall* call = nullptr;
    int64_t number = 0;  ///< counted from 1 within its meeting
  };
  struct Rank {
    int64_t num_calls = 0;
    CommCall last;        ///< copy of the call that began last; its group may no longer exist
    OpenCall last_place;  ///< of that call; it may no longer exist, either
    std::vector<OpenCall> open;
    std::optional<RankAccount> told;  ///< of a rank in another process
  };

  const Rank& of(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  static bool waits(const OpenCall& open) { return open.meeting->num_met < open.number; }
  static std::string describe(const Rank& entry);
  static std::string describe_open(const OpenCall& open);

  std::vector<Rank> ranks_;
};

}  // namespace braid
