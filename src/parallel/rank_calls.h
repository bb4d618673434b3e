#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/communication_calls.h"
#include "parallel/rank_classes.h"
#include "parallel/verify_ranks.h"

namespace braid {

/// The calls of all ranks, by classes of ranks, and where they meet.
class RankCalls {
 public:
  static constexpr uint32_t kNone = ProgramCalls::kNone;

  /// The part of a class of ranks in a meeting: a sequence of calls of its program, or kNone.
  struct End {
    uint32_t rank_class = 0;
    uint32_t sequence = kNone;
  };
  /// Where calls meet one after the other: the collectives of a kind of group, or the messages from
  /// one of its members to another on one channel.
  struct Meeting {
    bool is_message = false;
    std::vector<End> ends;  ///< collectives: each class of members once; messages: sender, receiver
    int64_t channel = 0;    ///< messages
    /// A rank that takes part and, in group order, the ranks of its group (messages: sender and
    /// receiver).
    int rank = 0;
    std::vector<int> ranks;
    std::string group;  ///< name
  };

  /// `programs` is by program of `ranks`.
  RankCalls(const RankPrograms& ranks, std::vector<ProgramCalls> programs, RankClasses classes);

  const std::vector<RankClass>& classes() const { return classes_.classes; }
  const AlikeRanks& ranks() const { return classes_.ranks; }
  uint32_t class_of(int rank) const { return classes_.ranks.kind_of[static_cast<size_t>(rank)]; }
  int first_rank(uint32_t rank_class) const { return classes_.ranks.stand_ins[rank_class]; }
  const std::vector<ProgramCalls>& programs() const { return programs_; }
  const ProgramCalls& calls_of(uint32_t rank_class) const {
    return programs_[classes_.classes[rank_class].program];
  }
  const std::vector<Meeting>& meetings() const { return meetings_; }
  uint32_t meeting_of(uint32_t rank_class, uint32_t sequence) const {
    return meeting_of_[rank_class][sequence];
  }
  /// The calls of an end, as indices into ProgramCalls::calls; none if it has no sequence.
  const std::vector<uint32_t>& calls_at(const End& end) const;
  /// The ranks that a call of this rank meets: all of the group, or sender and receiver.
  std::vector<int> ranks_at(int rank, uint32_t sequence) const;

 private:
  void add_meetings(uint32_t rank_class);
  Meeting make_meeting(uint32_t rank_class, const ProgramCalls::Sequence& sequence) const;

  const RankPrograms& ranks_;
  std::vector<ProgramCalls> programs_;
  RankClasses classes_;
  std::vector<Meeting> meetings_;
  std::vector<std::vector<uint32_t>> meeting_of_;  // by class and sequence
};

/// The calls of all ranks, if they fit together: everything that `verify_ranks` checks but the run
/// to the end. Otherwise nullopt, and one line per fault is appended to `faults`. `ranks` must
/// outlive the result. Throws InternalError if a rank has no program, or one of another number of
/// ranks.
std::optional<RankCalls> match_calls(const RankPrograms& ranks, std::vector<std::string>& faults,
                                     const GroupColor& color = {},
                                     MessageOrder order = MessageOrder::kPerChannel);

/// Appends one line per meeting whose ends do not fit together: numbers of calls, forms, or labels
/// (see `verify_ranks`).
void check_meetings(const RankCalls& calls, const StringTable& forms,
                    std::vector<std::string>& faults);

}  // namespace braid
