#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.h"
#include "calibrate/rank_timer.h"
#include "sim/cluster.h"
#include "sim/profile.h"

namespace braid {

/// Times communication as steps have it: tasks of programs, through the executors of the device, on
/// several devices of this host.
struct DeviceCommOptions {
  RanksFactory make_ranks;
  int num_ranks = 2;                 ///< devices there are
  std::vector<int64_t> sizes_bytes;  ///< of the whole buffer, as in CommSpec
  DType dtype = DType::kBF16;        ///< of matrix products beside communication; that is in f32
  Cluster cluster;                   ///< by which durations are guessed beforehand
  bool copy_engines = false;         ///< also what copy engines can do, by them
  RankTimerOptions timer = {};
  int64_t program_ns = 4'000'000;  ///< a program repeats its call so long, about
  std::function<void()> on_point = {};
};

/// Sizes of groups that are timed on so many devices: 2, 4, 8, ... and all.
std::vector<int> timed_group_sizes(int num_ranks);

/// How many points `time_device_communication` has.
int64_t num_comm_points(const DeviceCommOptions& options);

/// Every kind of communication, of every size, in groups of these sizes, each alone. What the
/// library chooses counts as algorithm "ring", by copy engines as "copy_engine_direct". Messages
/// (`send_recv`) are between two ranks one way, in larger groups each rank's to the next. A call is
/// repeated in a program, and a launch of it divided by the repetitions; the median of samples.
/// No points by copy engines where something else does their work (Executor::notes). Throws what
/// the executors throw.
std::vector<CommPoint> time_device_communication(const DeviceCommOptions& options);

/// How all-gathers of 128 MiB over all ranks (or the largest size, if that is smaller) and compute
/// slow each other: matrix products, and sums that memory limits. Where copy engines are timed,
/// also beside them. What is not measured is `otherwise`.
Contention time_contention(const DeviceCommOptions& options, const Contention& otherwise);

/// How long compute and communication take alone, and together if they begin at once: once with so
/// much communication that it ends last, once with so much compute.
struct TogetherTimes {
  struct Pair {
    double compute_ns = 0;   ///< alone
    double comm_ns = 0;      ///< alone
    double together_ns = 0;  ///< until both have ended
  };
  Pair comm_longer;     ///< communication goes on when compute has ended
  Pair compute_longer;  ///< the other way round
};

/// The rates at which each goes on beside the other, u of compute and v of communication. Compute
/// that takes c alone takes c / u, in which communication gets c v / u done; so the first pair
/// lasts communication + (1 - v) / u * c, and the second the same with both exchanged. Where
/// nothing is gained by running together (u + v = 1) these do not tell u from v: about a half each.
SharedRates shared_rates(const TogetherTimes& times);

}  // namespace braid
