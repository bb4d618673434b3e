#include "calibrate/rank_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "backends/run_ranks.h"
#include "base/errors.h"
#include "calibrate/task_timer.h"

namespace braid {
namespace {

constexpr int64_t kMaxLaunches = 200;

double now_ns() {
  return std::chrono::duration<double, std::nano>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A timing minus the overhead of every launch.
Timing without(const Timing& timing, double overhead_ns) {
  const double ns = std::max(1.0, static_cast<double>(timing.ns) - overhead_ns);
  return {.ns = std::llround(ns), .spread = timing.spread};
}

}  // namespace

RankTimer::RankTimer(TimedRanks ranks, const RankTimerOptions& options)
    : ranks_(std::move(ranks)), options_(options) {
  check(!ranks_.executors.empty() && options_.num_samples > 0, "nothing is to be timed");
}

/// Time per launch. A first launch, which does not count, synchronizes the ranks; communication
/// keeps them together in the others.
double RankTimer::launches_ns(size_t program, int64_t num_launches) {
  std::vector<double> elapsed_ns(ranks_.executors.size());
  run_side_by_side(ranks_.executors.size(), [&](size_t rank) {
    Executor& executor = *ranks_.executors[rank];
    executor.run(program);
    const double begin_ns = now_ns();
    for (int64_t i = 0; i < num_launches; ++i) {
      executor.run(program);
    }
    elapsed_ns[rank] = now_ns() - begin_ns;
  });
  return *std::max_element(elapsed_ns.begin(), elapsed_ns.end()) /
         static_cast<double>(num_launches);
}

Timing RankTimer::time(size_t program) {
  double once_ns = std::max(1.0, launches_ns(program, 1));
  const auto warm_up = std::clamp<int64_t>(
      std::llround(static_cast<double>(options_.warm_up_ns) / once_ns), 1, kMaxLaunches);
  once_ns = std::max(1.0, launches_ns(program, warm_up));
  const auto launches = std::clamp<int64_t>(
      std::llround(static_cast<double>(options_.sample_ns) / once_ns), 1, kMaxLaunches);
  std::vector<double> samples_ns;
  for (int i = 0; i < options_.num_samples; ++i) {
    samples_ns.push_back(launches_ns(program, launches));
  }
  return without(summarize(std::move(samples_ns)), overhead_ns_);
}

void RankTimer::measure_overhead(size_t one, size_t many, int64_t num_tasks) {
  check(num_tasks > 1, "an overhead from {} tasks", num_tasks);
  overhead_ns_ = 0;
  const auto one_ns = static_cast<double>(time(one).ns);
  const auto many_ns = static_cast<double>(time(many).ns);
  const double task_ns = std::max(0.0, (many_ns - one_ns) / static_cast<double>(num_tasks - 1));
  overhead_ns_ = std::max(0.0, one_ns - task_ns);
}

std::vector<std::string> RankTimer::notes() const {
  std::vector<std::string> notes;
  for (const auto& executor : ranks_.executors) {
    const std::vector<std::string> own = executor->notes();
    notes.insert(notes.end(), own.begin(), own.end());
  }
  return notes;
}

void RankTimer::write(std::string_view buffer, std::span<const std::byte> bytes) {
  for (const auto& executor : ranks_.executors) {
    executor->write(buffer, 0, bytes);
  }
}

}  // namespace braid
