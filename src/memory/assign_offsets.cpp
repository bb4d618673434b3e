#include "memory/assign_offsets.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "memory/backtracking.h"
#include "memory/greedy.h"
#include "memory/rounds.h"
#include "memory/sweep.h"

namespace braid {
namespace {

// Approximate costs on a core of 3 GHz.
constexpr int64_t kSweepNsPerBlock = 300;  // per buffer in the free blocks of one queue
constexpr int64_t kGreedyNsPerPair = 60;
constexpr int64_t kMaxRounds = 4096;

// A layer has some tens of tasks: a buffer that lives shorter is a temporary, one that lives
// longer waits for the backward. Which split is best depends on the program.
constexpr std::array<uint32_t, 4> kShortLifeTasks = {64, 32, 256, 16};

// Of buffers that live at a time, on average: with more, it seldom pays to take back the last few.
constexpr int64_t kMostToTakeBack = 24;

// Half a percent of a small arena saves nothing: devices allocate pages of at least this size.
constexpr int64_t kLeastGainBytes = 64 * 1024;

/// Keeps the best packing so far and decides whether to look for a better one.
class Search {
 public:
  Search(int64_t lower_bound_bytes, int64_t budget_ns)
      : good_enough_bytes_(braid::good_enough_bytes(lower_bound_bytes)), budget_ns_(budget_ns) {}

  /// Runs `pack()` if the best result may still improve and the budget allows the cost. The first
  /// attempt always runs.
  template <class Pack>
  void attempt(int64_t cost_ns, const Pack& pack) {
    const bool is_first = spent_ns_ == 0;
    if (!is_first &&
        (best_.arena_bytes <= good_enough_bytes_ || spent_ns_ + cost_ns > budget_ns_)) {
      return;
    }
    spent_ns_ += cost_ns + 1;
    Packing packing = pack();
    if (is_first || packing.arena_bytes < best_.arena_bytes) {
      best_ = std::move(packing);
    }
  }

  int64_t good_enough_bytes() const { return good_enough_bytes_; }
  int64_t best_bytes() const { return best_.arena_bytes; }
  int64_t left_ns() const { return budget_ns_ - spent_ns_; }
  /// How many rounds, after their set-up, three quarters of the remaining budget allow: the rest is
  /// for other heuristics, which sometimes do better on large programs.
  int64_t num_rounds(int64_t setup_ns, int64_t round_ns) const {
    return (left_ns() * 3 / 4 - setup_ns) / (round_ns + 1);
  }
  Packing take() { return std::move(best_); }

 private:
  int64_t good_enough_bytes_;
  int64_t budget_ns_;
  int64_t spent_ns_ = 0;
  Packing best_;
};

bool few_live_at_a_time(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes) {
  const auto num_buffers = static_cast<int64_t>(buffers_by_first_task(ranges, sizes_bytes).size());
  return count_overlapping_pairs(ranges, sizes_bytes) <= kMostToTakeBack * num_buffers;
}

}  // namespace

int64_t good_enough_bytes(int64_t lower_bound_bytes) {
  return lower_bound_bytes + std::max(lower_bound_bytes / 200, kLeastGainBytes);
}

Packing assign_offsets(const LiveRanges& ranges, std::span<const int64_t> sizes_bytes,
                       int64_t lower_bound_bytes, int64_t budget_ns) {
  Sweeps sweeps(ranges, sizes_bytes);
  return assign_offsets(sweeps, lower_bound_bytes, budget_ns);
}

Packing assign_offsets(Sweeps& sweeps, int64_t lower_bound_bytes, int64_t budget_ns) {
  const LiveRanges& ranges = sweeps.ranges();
  const std::span<const int64_t> sizes_bytes = sweeps.sizes_bytes();
  if (budget_ns == 0) {  // for the first heuristic only
    return sweeps.pack({lower_bound_bytes, kShortLifeTasks.front()});
  }
  const int64_t sweep_ns =
      kSweepNsPerBlock * static_cast<int64_t>(ranges.num_buffers() * ranges.num_queues());
  const int64_t greedy_ns = kGreedyNsPerPair * count_overlapping_pairs(ranges, sizes_bytes);
  Search search(lower_bound_bytes, budget_ns);
  const auto sweep = [&](uint32_t short_life_tasks) {
    search.attempt(sweep_ns, [&] { return sweeps.pack({lower_bound_bytes, short_life_tasks}); });
  };
  sweep(kShortLifeTasks.front());
  const int64_t step_ns = backtracking_step_ns(ranges, sizes_bytes);
  const int64_t num_steps = search.left_ns() / 4 / step_ns;
  if (num_steps > 0 && few_live_at_a_time(ranges, sizes_bytes)) {
    search.attempt(num_steps * step_ns, [&] {
      return pack_by_backtracking(ranges, sizes_bytes,
                                  {.bound_bytes = lower_bound_bytes,
                                   .target_bytes = search.good_enough_bytes(),
                                   .limit_bytes = search.best_bytes(),
                                   .max_steps = num_steps})
          .value_or(Packing{.offset_bytes = {}, .arena_bytes = INT64_MAX});
    });
  }
  const int64_t setup_ns = rounds_setup_ns(ranges, sizes_bytes);
  const int64_t num_rounds =
      std::min(kMaxRounds, search.num_rounds(setup_ns, round_ns(ranges, sizes_bytes)));
  if (num_rounds > 0) {
    search.attempt(setup_ns + num_rounds * round_ns(ranges, sizes_bytes), [&] {
      return pack_in_rounds(ranges, sizes_bytes, search.good_enough_bytes(), num_rounds);
    });
  }
  for (const uint32_t short_life_tasks : std::span(kShortLifeTasks).subspan(1)) {
    sweep(short_life_tasks);
  }
  for (const GreedyOrder order : {GreedyOrder::kSize, GreedyOrder::kArea, GreedyOrder::kLifetime}) {
    search.attempt(greedy_ns, [&] { return pack_greedily(ranges, sizes_bytes, order); });
  }
  return search.take();
}

}  // namespace braid
