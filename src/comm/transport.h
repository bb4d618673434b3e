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

/// A call failed only because another rank failed: the echo of an error and not its cause.
class AbortedError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// That, why and when a transport was aborted.
struct Abort {
  std::string reason;
  std::chrono::steady_clock::time_point when;
};

/// One rank's end of the communication of all groups. Groups are told apart by name and ranks.
///
/// A collective is called by every rank of its group, in one order per group (the program's); a
/// send is called at one end and a recv at the other, in one order per group, pair of ranks and
/// channel. Calls come from any thread of a rank; different groups, and different channels, do not
/// wait for each other. A call blocks until this rank's part is done: its y is there, and nobody
/// reads its x any more. Sums are computed in group-rank order with fp32 (f64 for f64)
/// accumulation: bitwise the same on every rank and run.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Makes what later runs of such a call need, so that they allocate nothing. Optional; waits for
  /// nobody. Throws InternalError if the call is a bug (see check_comm_call).
  virtual void prepare(const CommCall& call) = 0;

  /// Throws DeviceError if the ranks disagree on op, size, dtype, root, shift or task (naming rank,
  /// group and both values), if a rank failed or was aborted, or if a rank is missing for longer
  /// than the transport's timeout (naming the ranks that are missing, their last calls, and for
  /// whom they wait themselves). Throws InternalError for calls that are bugs: see check_comm_call,
  /// and two calls of one rank at once in one group or channel.
  virtual void run(const CommCall& call) = 0;

  /// Makes all present and future calls of every rank fail with AbortedError carrying `reason`: a
  /// rank has failed. The first reason stays. Returns at once; may be called by any thread.
  virtual void abort(const std::string& reason) = 0;

  /// This rank has run all tasks of a step; any of its threads may say so, once per step. Waits for
  /// nobody, and allocates nothing.
  virtual void end_step() = 0;

  /// Why this rank must be stuck, as one clause: it has not ended a step that another rank ended
  /// longer ago than the timeout, and waits for nobody (where it does, that call will fail). So a
  /// rank on which no call waits any more is missed, too. Nullopt otherwise.
  virtual std::optional<std::string> overdue() const = 0;

  /// Nullopt until then. A transport that ran into an error of its own is aborted, too.
  virtual std::optional<Abort> aborted() const = 0;
};

struct InProcessOptions {
  int num_ranks = 1;
  int64_t timeout_ns = 60'000'000'000;  ///< how long a call waits for the other ranks before it
                                        ///< names the missing ones
  LinkOptions links = {};               ///< default: no time but that of copying
};

/// Ranks as threads of one process: `make_in_process_transports(...)[r]` is rank r's end. Ranks
/// read each other's buffers, so nothing is copied twice; each computes or copies its share.
std::vector<std::unique_ptr<Transport>> make_in_process_transports(const InProcessOptions& options);

}  // namespace braid
