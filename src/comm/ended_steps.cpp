#include "comm/ended_steps.h"

#include <fmt/core.h>

namespace braid {

void EndedSteps::add(int rank, Time now) {
  Rank& steps = ranks_[static_cast<size_t>(rank)];
  ++steps.num_ended;
  steps.last_end = now;
}

std::optional<std::string> EndedSteps::describe_overdue(int rank, std::chrono::nanoseconds timeout,
                                                        Time now, const Ledger& ledger) const {
  if (ledger.is_in_call(rank)) {
    return std::nullopt;
  }
  const int64_t own = ranks_[static_cast<size_t>(rank)].num_ended;
  const Time late = now - timeout;
  for (size_t other = 0; other < ranks_.size(); ++other) {
    if (ranks_[other].num_ended > own && ranks_[other].last_end < late) {
      return fmt::format("rank {} has not ended the step that rank {} ended {} s ago; rank {}: {}",
                         rank, other, std::chrono::duration<double>(timeout).count(), rank,
                         ledger.account(rank).description);
    }
  }
  return std::nullopt;
}

}  // namespace braid
