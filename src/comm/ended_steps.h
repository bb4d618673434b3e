#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/ledger.h"

namespace braid {

/// The number of steps that each rank has ended, and the time when it ended the last one. This
/// detects a stuck rank even if no call waits for it.
class EndedSteps {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit EndedSteps(int num_ranks) : ranks_(static_cast<size_t>(num_ranks)) {}

  void add(int rank, Time now);

  /// "rank 1 has not ended the step that rank 0 ended 60 s ago; rank 1: last call ...", if another
  /// rank ended it more than `timeout` before `now`. Otherwise nullopt; also while the rank is in a
  /// call, because the call has its own timeout.
  std::optional<std::string> describe_overdue(int rank, std::chrono::nanoseconds timeout, Time now,
                                              const Ledger& ledger) const;

 private:
  struct Rank {
    int64_t num_ended = 0;
    Time last_end;
  };
  std::vector<Rank> ranks_;
};

}  // namespace braid
