#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.h"
#include "calibrate/rank_timer.h"
#include "sim/cluster.h"
#include "sim/profile.h"

namespace braid {

/// Times communication as in training steps: tasks of programs, run by the executors of several
/// devices of this host.
struct DeviceCommOptions {
  RanksFactory make_ranks;
  int num_ranks = 2;                 ///< number of devices
  std::vector<int64_t> sizes_bytes;  ///< of the whole buffer, as in CommSpec
  DType dtype = DType::kBF16;        ///< of matrix products that run together with communication,
                                     ///< which is in f32
  Cluster cluster;                   ///< for estimating durations in advance
  bool copy_engines = false;         ///< also measure copy engines, for ops that they support
  RankTimerOptions timer = {};
  int64_t program_ns = 4'000'000;  ///< approximate duration of a program, which repeats its call
  std::function<void()> on_point = {};
};

/// Sizes of groups that are timed with this number of devices: 2, 4, 8, ... and all.
std::vector<int> timed_group_sizes(int num_ranks);

/// The number of points of `time_device_communication`.
int64_t num_comm_points(const DeviceCommOptions& options);

/// Every kind of communication, of every size, in groups of these sizes, each alone. The library's
/// choice counts as algorithm "ring", copy engines as "copy_engine_direct". Messages (`send_recv`)
/// go in one direction between two ranks; in larger groups each rank sends to the next. A program
/// repeats a call, and the time of a launch is divided by the repetitions; the result is the median
/// of samples. There are no points for copy engines if the executor replaces them
/// (Executor::notes). Throws what the executors throw.
std::vector<CommPoint> time_device_communication(const DeviceCommOptions& options);

/// The slowdown of all-gathers of 128 MiB over all ranks (or the largest size, if that is smaller)
/// and compute by each other: matrix products, and memory-bound sums. If copy engines are timed,
/// also for them. Values that are not measured are those of `otherwise`.
Contention time_contention(const DeviceCommOptions& options, const Contention& otherwise);

/// Times of compute and communication alone, and together if they begin at once: once with so much
/// communication that it ends last, once with so much compute.
struct TogetherTimes {
  struct Pair {
    double compute_ns = 0;   ///< alone
    double comm_ns = 0;      ///< alone
    double together_ns = 0;  ///< until both have ended
  };
  Pair comm_longer;     ///< communication continues after compute has ended
  Pair compute_longer;  ///< compute continues after communication has ended
};

/// The rates at which each runs concurrently with the other, u of compute and v of communication.
/// Compute that takes c alone takes c / u, in which communication completes c v / u; so the first
/// pair lasts communication + (1 - v) / u * c, and the second the same with both exchanged. If
/// running together gains nothing (u + v = 1), these equations do not determine u and v: both are
/// about a half.
SharedRates shared_rates(const TogetherTimes& times);

}  // namespace braid
