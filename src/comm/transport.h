#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/errors.h"
#include "ir/program.h"

namespace braid {

/// A call failed only because another rank failed: the echo of an error and not its cause.
class AbortedError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// One rank's end of the communication of all groups. A collective is called by every rank of its
/// group, in one order per group (the program's), from any thread of that rank; it blocks until its
/// part is done. Reductions are computed in group-rank order with fp32 (f64 for f64) accumulation:
/// bitwise the same on every rank and run.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Sums `num_elems` elements over the group in place. Throws DeviceError if the ranks disagree on
  /// op, size or dtype (naming rank, group and both values), if a rank failed or was aborted, or if
  /// a rank is missing for longer than the transport's timeout (naming the ranks that are missing
  /// and their last call).
  virtual void all_reduce(const Group& group, void* data, int64_t num_elems, DType dtype,
                          const std::string& what) = 0;

  /// Makes all present and future calls of every rank fail with AbortedError carrying `reason`: a
  /// rank has failed. The first reason stays. Returns at once; may be called by any thread.
  virtual void abort(const std::string& reason) = 0;
};

struct InProcessOptions {
  int num_ranks = 1;
  int64_t timeout_ns = 60'000'000'000;  ///< how long a call waits for the other ranks before it
                                        ///< names the missing ones
};

/// Ranks as threads of one process: `make_in_process_transports(...)[r]` is rank r's end.
std::vector<std::unique_ptr<Transport>> make_in_process_transports(const InProcessOptions& options);

}  // namespace braid
