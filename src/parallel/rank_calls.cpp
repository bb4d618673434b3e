#include "parallel/rank_calls.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/errors.h"

namespace braid {

RankCalls::RankCalls(const RankPrograms& ranks, std::vector<ProgramCalls> programs,
                     RankClasses classes)
    : ranks_(ranks), programs_(std::move(programs)), classes_(std::move(classes)) {
  // Kind of group, and for messages also sender, receiver and channel.
  using Key = std::tuple<uint32_t, bool, uint32_t, uint32_t, int64_t>;
  std::map<Key, uint32_t> ids;
  for (uint32_t rank_class = 0; rank_class < classes_.classes.size(); ++rank_class) {
    std::vector<uint32_t>& own = meeting_of_.emplace_back();
    for (const ProgramCalls::Sequence& sequence : calls_of(rank_class).sequences) {
      const RankClass::GroupUse& group = classes_.classes[rank_class].groups[sequence.group];
      const bool sends = sequence.kind == CallKind::kSend;
      const bool is_message = sequence.kind != CallKind::kCollective;
      const auto peer = static_cast<uint32_t>(std::max<int64_t>(sequence.peer, 0));
      const Key key = is_message ? Key(group.kind, true, sends ? group.position : peer,
                                       sends ? peer : group.position, sequence.channel)
                                 : Key(group.kind, false, 0, 0, 0);
      const auto [found, is_new] = ids.try_emplace(key, static_cast<uint32_t>(meetings_.size()));
      if (is_new) {
        meetings_.push_back(make_meeting(rank_class, sequence));
      }
      const auto number = static_cast<uint32_t>(own.size());
      own.push_back(found->second);
      std::vector<End>& ends = meetings_[found->second].ends;
      const auto end = is_message ? ends.begin() + (sends ? 0 : 1)
                                  : std::ranges::find(ends, rank_class, &End::rank_class);
      end->sequence = number;
    }
  }
}

RankCalls::Meeting RankCalls::make_meeting(uint32_t rank_class,
                                           const ProgramCalls::Sequence& sequence) const {
  const int rank = first_rank(rank_class);
  const auto number = static_cast<uint32_t>(&sequence - calls_of(rank_class).sequences.data());
  Meeting meeting{.is_message = sequence.kind != CallKind::kCollective,
                  .ends = {},
                  .channel = sequence.channel,
                  .rank = rank,
                  .ranks = ranks_at(rank, number),
                  .group = calls_of(rank_class).group_of(sequence).name};
  std::vector<bool> is_known(classes_.classes.size());
  for (const int member : meeting.ranks) {
    const uint32_t its_class = class_of(member);
    if (meeting.is_message || !is_known[its_class]) {
      meeting.ends.push_back({.rank_class = its_class});
      is_known[its_class] = true;
    }
  }
  return meeting;
}

const std::vector<uint32_t>& RankCalls::calls_at(const End& end) const {
  static const std::vector<uint32_t> kEmpty;
  return end.sequence == kNone ? kEmpty : calls_of(end.rank_class).sequences[end.sequence].calls;
}

std::vector<int> RankCalls::ranks_at(int rank, uint32_t sequence) const {
  const ProgramCalls& calls = calls_of(class_of(rank));
  const ProgramCalls::Sequence& it = calls.sequences[sequence];
  std::vector<int> ranks = ranks_.ranks_of_group
                               ? ranks_.ranks_of_group(rank, calls.groups[it.group].group)
                               : calls.group_of(it).ranks;
  if (it.kind == CallKind::kCollective) {
    return ranks;
  }
  const int peer = ranks[static_cast<size_t>(it.peer)];
  return it.kind == CallKind::kSend ? std::vector{rank, peer} : std::vector{peer, rank};
}

}  // namespace braid
