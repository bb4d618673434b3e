#pragma once

#include <cstdint>

namespace braid {

/// Failures of a machine, and what each costs. Failures of devices are independent, with the same
/// chance at any time (exponential); one of them stops the whole run, which goes on from the last
/// checkpoint.
struct FailureModel {
  double device_hours =
      0;  ///< mean time between failures of one device, with its share of the host
  int devices = 1;
  double save_s = 0;     ///< that compute waits for a checkpoint
  double restart_s = 0;  ///< from a failure until the run computes again, on spare nodes
  double repair_s = 0;   ///< until a failed node is back, or another is in its place

  /// Mean seconds between failures of the machine.
  double mean_s() const { return device_hours * 3600 / devices; }
};

/// Shares of the time of a long run; they add up to 1.
struct Goodput {
  double interval_s = 0;  ///< of compute between checkpoints
  double useful = 0;      ///< steps that are never lost
  double saves = 0;
  double failures = 0;  ///< steps that are lost and done again, restarts, and waiting for repairs
};

/// With a checkpoint after each `interval_s` seconds of compute, and `restart_s` seconds from a
/// failure on until the run computes again. Source: Daly, A higher order estimate of the optimum
/// checkpoint interval for restart dumps, 2006, equation 20, which is exact for these failures
/// (failures while a run restarts included).
Goodput goodput_at(const FailureModel& model, double interval_s, double restart_s);

/// The interval with the most useful time: x of the mean time between failures, with
/// 1 - x = e^(-x - save / mean), where the derivative of the above is 0. It does not depend on
/// restarts.
double best_interval_s(const FailureModel& model);

/// Spare nodes with which a failed node need not be waited for in `share` (below 0.999) of all
/// failures: those
/// that are being repaired are Poisson distributed (a queue with a server for each node).
int64_t spare_nodes(const FailureModel& model, double share);

}  // namespace braid
