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

/// What is known of a rank that is missing somewhere.
struct RankAccount {
  std::string description;   ///< a clause: "waits with ... for rank 2"
  std::vector<int> awaited;  ///< ranks that are missing where this one waits
};

/// "for rank 2; rank 2: last call ..., finished": who is missing where `rank` waits, what they do,
/// and so on for all for whom they wait. `account_of` is asked once per rank, and never for `rank`.
std::string describe_missing(int rank, std::vector<int> missing,
                             const std::function<RankAccount(int)>& account_of);

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
  void tell(int rank, RankAccount told) {
    ranks_[static_cast<size_t>(rank)].told = std::move(told);
  }

  /// "last call ... in group data, call 7, finished", and for whom it waits.
  RankAccount account(int rank) const;

  /// Who is missing where party `party` of `meeting` waits, as the function of this name says it.
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
    std::optional<RankAccount> told;  ///< of a rank in another process
  };

  const Rank& of(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  static bool waits(const OpenCall& open) { return open.meeting->num_met < open.number; }
  static std::string describe(const Rank& entry);
  static std::string describe_open(const OpenCall& open);

  std::vector<Rank> ranks_;
};

}  // namespace braid
