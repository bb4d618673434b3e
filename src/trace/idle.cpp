#include "trace/idle.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace braid {
namespace {

constexpr size_t kNoGroup = kNumGroupKinds;

struct Piece {
  int64_t start_ns;
  int64_t end_ns;
  size_t group;  // kNoGroup: compute or a copy
};

std::vector<Piece> pieces_of(const RankTimeline& rank) {
  std::vector<Piece> pieces;
  pieces.reserve(rank.tasks.size());
  for (const TimelineTask& task : rank.tasks) {
    if (task.start_ns < task.end_ns) {
      pieces.push_back({task.start_ns, task.end_ns,
                        task.communication ? static_cast<size_t>(task.group) : kNoGroup});
    }
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.group < b.group;
  });
  return pieces;
}

/// The end of warmup and the start of cooldown.
struct Phases {
  int64_t first_backward_ns = std::numeric_limits<int64_t>::max();
  int64_t last_forward_ns = 0;
};

Phases phases_of(const RankTimeline& rank) {
  Phases phases;
  for (const TimelineTask& task : rank.tasks) {
    if (task.communication || task.start_ns == task.end_ns) {
      continue;  // may come long before the work that it belongs to
    }
    if (task.phase == Phase::kDgrad) {
      phases.first_backward_ns = std::min(phases.first_backward_ns, task.start_ns);
    } else if (task.phase == Phase::kForward) {
      phases.last_forward_ns = std::max(phases.last_forward_ns, task.end_ns);
    }
  }
  return phases;
}

class GapCounter {
 public:
  explicit GapCounter(const RankTimeline& rank) : phases_(phases_of(rank)) {}

  IdleTimes count(const std::vector<Piece>& pieces, int64_t step_ns) {
    int64_t until_ns = 0;
    for (const Piece& piece : pieces) {
      if (piece.start_ns > until_ns) {
        add(until_ns, piece.start_ns, piece.group);
      }
      until_ns = std::max(until_ns, piece.end_ns);
    }
    if (step_ns > until_ns) {
      times_.at_end_ns = step_ns - until_ns;
      add_to_phase(until_ns, step_ns);
    }
    return times_;
  }

 private:
  void add(int64_t begin_ns, int64_t end_ns, size_t group) {
    (group == kNoGroup ? times_.before_compute_ns : times_.before_communication_ns[group]) +=
        end_ns - begin_ns;
    add_to_phase(begin_ns, end_ns);
  }

  void add_to_phase(int64_t begin_ns, int64_t end_ns) {
    int64_t& phase = begin_ns < phases_.first_backward_ns  ? times_.warmup_ns
                     : begin_ns >= phases_.last_forward_ns ? times_.cooldown_ns
                                                           : times_.steady_ns;
    phase += end_ns - begin_ns;
  }

  Phases phases_;
  IdleTimes times_;
};

}  // namespace

IdleTimes analyze_idle(const RankTimeline& rank, int64_t step_ns) {
  return GapCounter(rank).count(pieces_of(rank), step_ns);
}

}  // namespace braid
