#include "parallel/balance_stages.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "parallel/pipeline_times.h"

namespace braid {
namespace {

using Layers = std::vector<int64_t>;  // by stage

/// Limit of jobs timed in one search over all layouts; keeps it to some hundredths of a second.
constexpr size_t kMaxJobs = 4'000'000;
constexpr size_t kClimbs = 3;
/// Maximum number of rounds that are tried as the first round with more layers.
constexpr size_t kMaxFirstRounds = 8;
/// A layout may double the peak activations of a rank if its step gets shorter by this part (1/20).
constexpr int64_t kMemoryPart = 20;

/// Lower is better.
struct Score {
  int64_t end_and_peak = 0;
  int64_t squares = 0;  // sum of squared layer counts: smallest for the most even layout

  friend auto operator<=>(const Score&, const Score&) = default;
};

int64_t sum(const Layers& layers) {
  return std::accumulate(layers.begin(), layers.end(), int64_t{0});
}

class Balancer {
 public:
  Balancer(const ScheduleOptions& schedule, int64_t layers, const PartCosts& costs)
      : num_ranks_(static_cast<size_t>(schedule.num_ranks)),
        num_stages_(static_cast<size_t>(schedule.num_stages())),
        layers_(layers),
        costs_(costs),
        clock_(balancing_schedule(schedule)) {
    sum_costs();
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      rank_of_.push_back(static_cast<size_t>(place_of(schedule, stage).rank));
    }
    even_end_ = end_of(nearly_even());
    even_peak_ = peak_of(nearly_even());
  }

  Layers run(BalanceEffort effort) {
    std::vector<std::pair<Score, Layers>> starts;
    for (Layers& layers : start_layouts()) {
      const Score score = score_of(layers);
      starts.emplace_back(score, std::move(layers));
    }
    std::ranges::sort(starts);
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    if (effort == BalanceEffort::kRough) {
      return starts.front().second;
    }
    starts.resize(std::min(starts.size(), kClimbs));
    for (auto& [score, layers] : starts) {
      climb(layers, score);
    }
    return std::ranges::min_element(starts)->second;
  }

 private:
  /// The first and the last stage may have no layer: they can hold only the embedding or the head.
  int64_t least_layers(size_t stage) const {
    return stage == 0 || stage + 1 == num_stages_ ? 0 : 1;
  }

  void sum_costs() {
    sums_.resize(static_cast<size_t>(layers_) + 1);
    for (size_t layer = 0; layer + 1 < sums_.size(); ++layer) {
      const PartCost& cost = costs_.layer(layer);
      const PartCost& sum = sums_[layer];
      sums_[layer + 1] = {sum.forward + cost.forward, sum.dgrad + cost.dgrad,
                          sum.wgrad + cost.wgrad, sum.activations + cost.activations};
      are_alike_ = are_alike_ && cost == costs_.layer(0);
    }
  }

  /// Cost of layers [first, first + count).
  PartCost cost_of(int64_t first, int64_t count) const {
    const PartCost& begin = sums_[static_cast<size_t>(first)];
    const PartCost& end = sums_[static_cast<size_t>(first + count)];
    return {end.forward - begin.forward, end.dgrad - begin.dgrad, end.wgrad - begin.wgrad,
            end.activations - begin.activations};
  }

  static int64_t total(const PartCost& cost) { return cost.forward + cost.dgrad + cost.wgrad; }

  std::vector<PartCost> costs_of(const Layers& layers) const {
    std::vector<PartCost> costs;
    costs.reserve(layers.size());
    int64_t first = 0;
    for (const int64_t count : layers) {
      costs.push_back(cost_of(first, count));
      first += count;
    }
    return costs;
  }

  std::vector<StageTimes> times_of(const Layers& layers) const {
    std::vector<StageTimes> times;
    times.reserve(layers.size());
    int64_t first = 0;
    for (const int64_t count : layers) {
      add(times.emplace_back(), cost_of(first, count));
      first += count;
    }
    add(times.front(), costs_.embedding);
    add(times.back(), costs_.head);
    return times;
  }

  static void add(StageTimes& times, const PartCost& cost) {
    times.forward_ns += cost.forward;
    times.dgrad_ns += cost.dgrad;
    times.wgrad_ns += cost.wgrad;
  }

  int64_t end_of(const Layers& layers) {
    num_jobs_run_ += clock_.num_jobs();
    return std::ranges::max(clock_.end_times(times_of(layers), 0));
  }

  std::vector<int64_t> peaks_of(const Layers& layers) const {
    std::vector<int64_t> activations;
    activations.reserve(layers.size());
    for (const PartCost& cost : costs_of(layers)) {
      activations.push_back(cost.activations);
    }
    return clock_.peak_activations(activations);
  }
  int64_t peak_of(const Layers& layers) const { return std::ranges::max(peaks_of(layers)); }

  static int64_t squares_of(const Layers& layers) {
    return std::inner_product(layers.begin(), layers.end(), layers.begin(), int64_t{0});
  }

  /// `peak`: activations of the rank that holds most.
  Score score_of(const Layers& layers, int64_t end, int64_t peak) const {
    return {kMemoryPart * end * even_peak_ + even_end_ * peak, squares_of(layers)};
  }

  Score score_of(const Layers& layers) { return score_of(layers, end_of(layers), peak_of(layers)); }

  /// Number of mean layers with the same cost as `part`, rounded.
  int64_t in_layers(const PartCost& part) const {
    const int64_t one = std::max<int64_t>(total(sums_.back()) / layers_, 1);
    return (total(part) + one / 2) / one;
  }

  /// Gives each stage `low` layers, and one more in `num_high` rounds, starting at round `first`
  /// and wrapping around. The first and the last stage get fewer layers because of embedding and
  /// head. Excess layers are removed from the last high round, one per rank from either end.
  std::optional<Layers> in_rounds(int64_t low, size_t num_high, size_t first, int64_t head,
                                  bool from_back) const {
    const size_t rounds = num_stages_ / num_ranks_;
    Layers layers(num_stages_, low);
    for (size_t i = 0; i < num_high; ++i) {
      const size_t round = (first + i) % rounds;
      for (size_t rank = 0; rank < num_ranks_; ++rank) {
        ++layers[round * num_ranks_ + rank];
      }
    }
    layers.front() -= std::min(layers.front(), in_layers(costs_.embedding));
    layers.back() -= std::min(layers.back(), head);
    int64_t rest = sum(layers) - layers_;
    const size_t last = (first + std::max<size_t>(num_high, 1) - 1) % rounds;
    for (size_t i = 0; i < num_ranks_ && rest > 0; ++i) {
      const size_t rank = from_back ? num_ranks_ - 1 - i : i;
      int64_t& count = layers[last * num_ranks_ + rank];
      const bool may_lose = count > least_layers(last * num_ranks_ + rank);
      count -= may_lose ? 1 : 0;
      rest -= may_lose ? 1 : 0;
    }
    return rest == 0 ? std::optional(layers) : std::nullopt;
  }

  /// The most even layout. The remainder goes to the middle stages.
  Layers nearly_even() const {
    Layers layers(num_stages_, layers_ / static_cast<int64_t>(num_stages_));
    for (size_t stage = 0; stage < num_stages_; ++stage) {
      layers[stage] = std::max(layers[stage], least_layers(stage));
    }
    int64_t rest = layers_ - sum(layers);
    for (size_t i = 0; rest > 0; ++i, --rest) {
      ++layers[num_stages_ < 3 ? i % num_stages_ : 1 + i % (num_stages_ - 2)];
    }
    return layers;
  }

  /// Ends every stage at the layer where its cost plus that of all earlier stages is closest to
  /// their share.
  Layers by_cost() const {
    const int64_t front = total(costs_.embedding);
    const int64_t all = front + total(sums_.back()) + total(costs_.head);
    Layers layers;
    int64_t first = 0;
    for (size_t stage = 0; stage < num_stages_; ++stage) {
      const int64_t behind =
          std::max<int64_t>(static_cast<int64_t>(num_stages_) - static_cast<int64_t>(stage) - 2, 0);
      const int64_t share =
          all / static_cast<int64_t>(num_stages_) * static_cast<int64_t>(stage + 1);
      const auto off = [&](int64_t end) {
        return std::abs(front + total(sums_[static_cast<size_t>(end)]) - share);
      };
      int64_t end = first + least_layers(stage);
      while (end < layers_ - behind && off(end + 1) <= off(end)) {
        ++end;
      }
      end = stage + 1 == num_stages_ ? layers_ : end;
      layers.push_back(end - first);
      first = end;
    }
    return layers;
  }

  std::vector<Layers> start_layouts() const {
    std::vector<Layers> starts{nearly_even()};
    if (!are_alike_) {
      starts.push_back(by_cost());
    }
    const size_t rounds = num_stages_ / num_ranks_;
    const size_t step = std::max<size_t>(rounds / kMaxFirstRounds, 1);
    const auto stages = static_cast<int64_t>(num_stages_);
    const int64_t heads = in_layers(costs_.head);
    const int64_t low = std::max<int64_t>((layers_ + heads) / stages - 1, 1);
    for (int64_t level = low; level <= low + 2; ++level) {
      for (int64_t head = std::max<int64_t>(heads - 1, 0); head <= heads + 1; ++head) {
        for (size_t num_high = 0; num_high < rounds; ++num_high) {
          for (size_t first = 0; first < (num_high == 0 ? 1 : rounds); first += step) {
            for (const bool from_back : {false, true}) {
              if (auto layers = in_rounds(level, num_high, first, head, from_back)) {
                starts.push_back(std::move(*layers));
              }
            }
          }
        }
      }
    }
    return starts;
  }

  /// Time of one layer on a critical path, by stage: an upper bound of the gain from moving a layer
  /// away, and a lower bound of the loss from adding one. If layers differ, uses the mean layer.
  std::vector<int64_t> critical_times(const Layers& layers) const {
    const PartCost& all = sums_.back();
    std::vector<int64_t> times;
    for (const JobCounts& jobs : clock_.critical_jobs(times_of(layers))) {
      times.push_back(
          (jobs.forwards * all.forward + jobs.dgrads * all.dgrad + jobs.wgrads * all.wgrad) /
          layers_);
    }
    return times;
  }

  struct Move {
    int64_t gain = 0;  // upper bound
    size_t from = 0;
    size_t to = 0;
  };

  /// Moves that may gain something, most promising first. If layers differ, every move may gain.
  std::vector<Move> moves(const Layers& layers) const {
    const std::vector<int64_t> times = critical_times(layers);
    std::vector<Move> list;
    for (size_t from = 0; from < num_stages_; ++from) {
      for (size_t to = 0; to < num_stages_; ++to) {
        const bool may_gain = times[from] > times[to] || !are_alike_;
        if (from != to && layers[from] > least_layers(from) && may_gain) {
          list.push_back({times[from] - times[to], from, to});
        }
      }
    }
    std::ranges::stable_sort(list, std::ranges::greater{}, &Move::gain);
    return list;
  }

  void climb(Layers& layers, Score& score) {
    const size_t limit = num_jobs_run_ + kMaxJobs / kClimbs;
    while (num_jobs_run_ < limit && improve(layers, score, limit)) {
    }
  }

  /// Makes the first move that improves the score.
  bool improve(Layers& layers, Score& score, size_t limit) {
    const std::vector<int64_t> peaks = peaks_of(layers);
    const int64_t peak = std::ranges::max(peaks);
    for (const Move& move : moves(layers)) {
      if (num_jobs_run_ > limit) {
        return false;
      }
      Layers next = layers;
      --next[move.from];
      ++next[move.to];
      // If another rank holds the peak, the move cannot lower it unless layers differ.
      const bool may_fall = peaks[rank_of_[move.from]] == peak || !are_alike_;
      const int64_t end = end_of(next);
      if (!may_fall && score <= score_of(next, end, peak)) {
        continue;
      }
      const Score next_score = score_of(next, end, peak_of(next));
      if (next_score < score) {
        layers = std::move(next);
        score = next_score;
        return true;
      }
    }
    return false;
  }

  size_t num_ranks_;
  size_t num_stages_;
  int64_t layers_;
  const PartCosts& costs_;
  PipelineClock clock_;
  std::vector<PartCost> sums_;  // by layer: sum of all previous layers, plus one end entry
  bool are_alike_ = true;
  std::vector<size_t> rank_of_;  // by stage
  size_t num_jobs_run_ = 0;
  int64_t even_end_ = 0;  // of the most even layout, the reference of the score
  int64_t even_peak_ = 0;
};

}  // namespace

ScheduleOptions balancing_schedule(ScheduleOptions schedule) {
  constexpr int64_t kGroups = 4;
  constexpr int64_t kRanksPerGroup = 4;
  schedule.pairs = JobPairs::kNone;
  const int64_t ranks = schedule.num_ranks;
  int64_t group = schedule.group_size > 0 ? schedule.group_size : ranks;
  int64_t rest = schedule.num_microbatches % group;
  if (group > kRanksPerGroup * ranks &&
      schedule.num_microbatches > kGroups * kRanksPerGroup * ranks) {
    schedule.group_size = group = kRanksPerGroup * ranks;
    rest = 0;
  }
  schedule.num_microbatches = std::min(schedule.num_microbatches, kGroups * group + rest);
  return schedule;
}

std::vector<int64_t> balanced_layers(const ScheduleOptions& schedule, int64_t layers,
                                     const PartCosts& costs, BalanceEffort effort) {
  check(layers >= 1 && layers >= schedule.num_stages() - 2, "{} layers for {} stages", layers,
        schedule.num_stages());
  check(costs.kind_of_layer.empty() || std::ssize(costs.kind_of_layer) == layers,
        "costs of {} layers instead of {}", costs.kind_of_layer.size(), layers);
  return schedule.num_stages() == 1 ? Layers{layers}
                                    : Balancer(schedule, layers, costs).run(effort);
}

}  // namespace braid
