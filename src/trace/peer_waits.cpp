#include "trace/peer_waits.h"

#include <algorithm>
#include <cstdint>

#include "trace/meetings.h"

namespace braid {

void find_peer_waits(Timeline& timeline) {
  for (RankTimeline& rank : timeline.ranks) {
    for (TimelineTask& task : rank.tasks) {
      task.wait_ns = 0;
    }
  }
  for_each_meeting(timeline, [&](std::span<const CallAt> calls) {
    int64_t all_here_ns = 0;
    for (const CallAt& call : calls) {
      all_here_ns = std::max(all_here_ns, timeline.ranks[call.rank].tasks[call.task].start_ns);
    }
    for (const CallAt& call : calls) {
      TimelineTask& task = timeline.ranks[call.rank].tasks[call.task];
      const bool waited = call.waits_inside && all_here_ns < task.end_ns;
      task.wait_ns = waited ? all_here_ns - task.start_ns : 0;
    }
  });
}

}  // namespace braid
