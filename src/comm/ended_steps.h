#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/ledger.h"

namespace braid {

/// How many steps each rank has ended, and when it ended the last one: so a rank for which no call
/// waits is missed, too.
class EndedSteps {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit EndedSteps(int num_ranks) : ranks_(static_cast<size_t>(num_ranks)) {}

  void add(int rank, Time now);

  /// "rank 1 has not ended the step that rank 0 ended 60 s ago; rank 1: last call ...", where
  /// another rank ended it more than `timeout` before `now`. Nullopt otherwise, and while the rank
  /// is in a call, which will fail itself.
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
