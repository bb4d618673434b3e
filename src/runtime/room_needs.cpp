#include "runtime/room_needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/text.h"
#include "plan/more_room.h"

namespace braid {
namespace {

int64_t most_peak_bytes(const RunPlan& plan) {
  int64_t most = 0;
  for (const RankPlan& rank : plan.ranks) {
    most = std::max(most, rank.memory.peak_bytes());
  }
  return most;
}

}  // namespace

std::string describe_more_room(const RunPlan& plan, const RunMemory& memory) {
  if (!plan.run.reruns_overflow || !may_overflow(plan.run)) {
    return "";
  }
  const RunPlan full =
      plan_run(with_full_room(plan.run), {.ranks = edge_ranks(plan.run.mesh), .verify = false});
  std::string text = fmt::format(
      "overflow {} needs {} per rank; steps with more rows run again with more room, up to {}\n",
      describe_room(plan.run), format_bytes(most_peak_bytes(plan)),
      format_bytes(std::max(most_peak_bytes(plan), most_peak_bytes(full))));
  for (const MemoryUse& use : memory_uses(full, memory)) {
    if (!use.fits()) {
      text += fmt::format("note     room for all rows does not fit: {}\n", describe_shortage(use));
    }
  }
  return text;
}

}  // namespace braid
