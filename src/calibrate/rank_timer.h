#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/executor.h"
#include "ir/program.h"
#include "sim/profile.h"

namespace braid {

/// Executors of ranks that communicate with each other.
struct TimedRanks {
  std::shared_ptr<void> meeting;  ///< the object through which they communicate
  std::vector<std::unique_ptr<Executor>> executors;
};

/// Makes the executors of these programs, by rank. All ranks have the same number of programs.
using RanksFactory = std::function<TimedRanks(std::vector<std::vector<Program>> programs)>;

struct RankTimerOptions {
  int num_samples = 9;
  int64_t warm_up_ns = 20'000'000;  ///< duration of launches before the first measured one
  int64_t sample_ns = 5'000'000;    ///< duration of launches that are timed together
};

/// Times programs that all ranks run at the same time.
class RankTimer {
 public:
  RankTimer(TimedRanks ranks, const RankTimerOptions& options);

  /// Measures the host's overhead of a launch: program `one` has one smallest task, program `many`
  /// has `num_tasks` of it. It is subtracted from all later timings.
  void measure_overhead(size_t one, size_t many, int64_t num_tasks);

  /// Nanoseconds of a launch on the slowest rank, from when all ranks have arrived. Throws what the
  /// executors throw.
  Timing time(size_t program);

  /// The executors' notes, for example that copy engines cannot do what programs request.
  std::vector<std::string> notes() const;

  /// Writes to a buffer of every rank.
  void write(std::string_view buffer, std::span<const std::byte> bytes);

 private:
  double launches_ns(size_t program, int64_t num_launches);

  TimedRanks ranks_;
  RankTimerOptions options_;
  double overhead_ns_ = 0;
};

}  // namespace braid
