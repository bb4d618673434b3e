#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/communication_calls.h"
#include "parallel/rank_classes.h"
#include "parallel/verify_ranks.h"

namespace braid {

/// The communication calls of all ranks, by rank class, and the meetings in which they match.
class RankCalls {
 public:
  static constexpr uint32_t kNone = ProgramCalls::kNone;

  /// One rank class's side of a meeting: a sequence of calls of its program, or kNone.
  struct End {
    uint32_t rank_class = 0;
    uint32_t sequence = kNone;
  };
  /// A series of matching calls: the collectives of a kind of group, or the messages from one
  /// member of it to another on one channel.
  struct Meeting {
    bool is_message = false;
    std::vector<End> ends;  ///< collectives: one per class of members; messages: sender, receiver
    int64_t channel = 0;    ///< messages only
    /// A rank that takes part, and the ranks of its group in group order (messages: sender,
    /// receiver).
    int rank = 0;
    std::vector<int> ranks;
    std::string group;  ///< name
  };

  /// `programs` is indexed like RankPrograms::programs.
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
  /// The calls of an end, as indices into ProgramCalls::calls; empty if it has no sequence.
  const std::vector<uint32_t>& calls_at(const End& end) const;
  /// The ranks that take part in this rank's calls: all ranks of the group, or sender and receiver.
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

/// Matches the calls of all ranks and checks everything that `verify_ranks` checks except deadlock.
/// Returns nullopt and appends one line per fault to `faults` if a check fails. `ranks` must
/// outlive the result. Throws InternalError if a rank has no program, or if a program has another
/// number of ranks.
std::optional<RankCalls> match_calls(const RankPrograms& ranks, std::vector<std::string>& faults,
                                     const GroupColor& color = {},
                                     MessageOrder order = MessageOrder::kPerChannel);

/// Appends one line per meeting whose ends differ in number of calls, forms, or labels (see
/// `verify_ranks`).
void check_meetings(const RankCalls& calls, const StringTable& forms,
                    std::vector<std::string>& faults);

}  // namespace braid
