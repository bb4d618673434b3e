#include "trace/rank_clocks.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/text.h"
#include "ops/op.h"
#include "trace/meetings.h"

namespace braid {
namespace {

void move_by(RankTimeline& rank, int64_t ns) {
  for (TimelineTask& task : rank.tasks) {
    task.start_ns += ns;
    task.end_ns += ns;
  }
  for (TimelineKernel& kernel : rank.kernels) {
    kernel.start_ns += ns;
    kernel.end_ns += ns;
  }
  if (rank.clock_origin_ns != 0) {
    rank.clock_origin_ns -= ns;
  }
}

int64_t first_start_ns(const Timeline& timeline) {
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  for (const RankTimeline& rank : timeline.ranks) {
    for (const TimelineTask& task : rank.tasks) {
      first_ns = std::min(first_ns, task.start_ns);
    }
    for (const TimelineKernel& kernel : rank.kernels) {
      first_ns = std::min(first_ns, kernel.start_ns);
    }
  }
  return first_ns;
}

void use_clocks_of_hosts(Timeline& timeline) {
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  for (const RankTimeline& rank : timeline.ranks) {
    first_ns = std::min(first_ns, rank.clock_origin_ns);
  }
  for (RankTimeline& rank : timeline.ranks) {
    move_by(rank, rank.clock_origin_ns - first_ns);
  }
}

/// Whether `a` cannot end before `b` has begun.
bool waits_for(const TimelineSequence& sequence, const RankTimeline& a, const TimelineTask& task,
               const RankTimeline& b) {
  if (sequence.messages) {
    return b.rank == sequence.ranks.front() && a.rank == sequence.ranks.back();
  }
  const OpDefinition* const op =
      task.op < a.ops.size() ? find_known_op(a.ops[task.op].name) : nullptr;
  return op != nullptr && op->communication && op->communication->waits_for_all;
}

/// By (a, b): the minimum of (end on rank a) - (start on rank b) over the calls in which a waits
/// for b. Relative to a, b may be moved later by at most this.
using Slacks = std::map<std::pair<size_t, size_t>, int64_t>;

Slacks slacks_of(const Timeline& timeline) {
  Slacks slacks;
  for_each_meeting(timeline, [&](std::span<const CallAt> calls) {
    for (const CallAt& a : calls) {
      const RankTimeline& rank = timeline.ranks[a.rank];
      const TimelineTask& end = rank.tasks[a.task];
      for (const CallAt& b : calls) {
        const RankTimeline& other = timeline.ranks[b.rank];
        if (a.rank != b.rank && a.waits_inside &&
            waits_for(rank.sequences[end.sequence], rank, end, other)) {
          const int64_t slack_ns = end.end_ns - other.tasks[b.task].start_ns;
          const auto [entry, is_new] = slacks.emplace(std::pair(a.rank, b.rank), slack_ns);
          entry->second = std::min(entry->second, slack_ns);
        }
      }
    }
  });
  return slacks;
}

/// Moves of at most 0 that make every slack at least 0; empty if there are none.
std::vector<int64_t> moves_for(const Slacks& slacks, size_t num_ranks) {
  std::vector<int64_t> moves(num_ranks, 0);
  for (size_t round = 0; round <= num_ranks; ++round) {
    bool changed = false;
    for (const auto& [pair, slack_ns] : slacks) {
      const int64_t limit_ns = moves[pair.first] + slack_ns;
      changed = changed || limit_ns < moves[pair.second];
      moves[pair.second] = std::min(moves[pair.second], limit_ns);
    }
    if (!changed) {
      return moves;
    }
  }
  return {};
}

void remark(RankTimeline& rank, const std::string& text) {
  rank.remark += (rank.remark.empty() ? "" : "; ") + text;
}

}  // namespace

RankClocks put_on_one_clock(Timeline& timeline) {
  RankClocks clocks;
  if (timeline.ranks.size() < 2) {
    return clocks;
  }
  clocks.num_unknown = static_cast<int>(
      std::count_if(timeline.ranks.begin(), timeline.ranks.end(),
                    [](const RankTimeline& rank) { return rank.clock_origin_ns == 0; }));
  if (clocks.num_unknown == 0) {
    use_clocks_of_hosts(timeline);
  }
  const std::vector<int64_t> moves = moves_for(slacks_of(timeline), timeline.ranks.size());
  clocks.contradictory = moves.empty();
  for (size_t i = 0; i < moves.size(); ++i) {
    if (moves[i] != 0) {
      clocks.largest_move_ns = std::max(clocks.largest_move_ns, -moves[i]);
      move_by(timeline.ranks[i], moves[i]);
      remark(timeline.ranks[i], fmt::format("clock moved by {} to before what it was waited for",
                                            format_duration(static_cast<double>(moves[i]) * 1e-9)));
    }
  }
  if (clocks.contradictory) {
    remark(timeline.ranks.front(), "the clocks of the ranks contradict what was communicated");
  }
  if (const int64_t first_ns = first_start_ns(timeline); first_ns < 0) {
    for (RankTimeline& rank : timeline.ranks) {
      move_by(rank, -first_ns);
    }
  }
  return clocks;
}

}  // namespace braid
