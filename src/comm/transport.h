#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "comm/comm_call.h"
#include "comm/links.h"

namespace braid {

/// A call failed only because another rank failed: a consequence of an error, not its cause.
class AbortedError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// The reason and the time of a transport's abort.
struct Abort {
  std::string reason;
  std::chrono::steady_clock::time_point when;
};

/// One rank's end of the communication of all groups. A group is identified by its name and ranks.
///
/// Every rank of a group calls its collectives in one order per group (the program's). One end
/// calls send and the other recv, in one order per group, pair of ranks and channel. Any thread of
/// a rank may call. Different groups, and different channels, do not wait for each other. A call
/// blocks until this rank's part is done: its y is complete, and no rank reads its x any more. Sums
/// are computed in group-rank order with fp32 (f64 for f64) accumulation: bitwise the same on every
/// rank and run.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Allocates what later runs of such a call need, so that they allocate nothing. Optional; does
  /// not wait. Throws InternalError for an invalid call (see check_comm_call).
  virtual void prepare(const CommCall& call) = 0;

  /// Throws DeviceError if the ranks disagree on op, size, dtype, root, shift or task (naming rank,
  /// group and both values), if a rank failed or was aborted, or if a rank is missing for longer
  /// than the transport's timeout (naming the missing ranks, their last calls, and the ranks for
  /// which they wait). Throws InternalError for an invalid call: see check_comm_call; also for two
  /// concurrent calls of one rank in one group or channel.
  virtual void run(const CommCall& call) = 0;

  /// Reports that a rank has failed: makes all present and future calls of every rank fail with
  /// AbortedError carrying `reason`. The first reason stays. Returns at once. Thread-safe.
  virtual void abort(const std::string& reason) = 0;

  /// This rank has run all tasks of a step. Call once per step, from any of its threads. Does not
  /// wait, and allocates nothing.
  virtual void end_step() = 0;

  /// The reason why this rank must be stuck, as one clause: it has not ended a step that another
  /// rank ended longer ago than the timeout, and it is not in a call (a call would time out
  /// itself). This detects a stuck rank even if no call waits for it. Otherwise nullopt.
  virtual std::optional<std::string> overdue() const = 0;

  /// The abort; nullopt if there is none. A transport aborts on its own errors, too.
  virtual std::optional<Abort> aborted() const = 0;
};

struct InProcessOptions {
  int num_ranks = 1;
  int64_t timeout_ns = 60'000'000'000;  ///< time that a call waits for other ranks before it fails
                                        ///< and names the missing ones
  LinkOptions links = {};               ///< default: no delay
};

/// For ranks that are threads of one process: `make_in_process_transports(...)[r]` is rank r's end.
/// Ranks read each other's buffers, so nothing is copied twice; each computes or copies its share.
std::vector<std::unique_ptr<Transport>> make_in_process_transports(const InProcessOptions& options);

}  // namespace braid
