#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/comm_call.h"

/// Communication of a rank whose other ranks are not there, so that one rank of a run can be run,
/// timed and traced alone: a task takes as long as it would, and leaves in y what has the size and
/// the looks of a result, and not its values. (Megatron and PyTorch call a group without ranks a
/// fake process group; theirs take no time.)
namespace braid {

/// How long the tasks of a rank that communicate with others take, from when it has come to them.
struct EmulatedPeers {
  std::vector<std::vector<int64_t>> task_ns;  ///< by program and task; of other tasks not looked at
  /// Results of at most so many bytes are made in every step. Larger ones are made in the first
  /// step of a program and stay where they are: the memory plan must give them a place of their own
  /// (memory/lasting_buffers.h).
  int64_t anew_bytes = INT64_MAX;
};

/// A good limit: among smaller results are norms, and maxima and sums of a softmax, which must fit
/// to the numbers of the step.
inline constexpr int64_t kSmallResultBytes = int64_t{4} << 20;

/// A part of what an emulated call does, within the memory of its rank.
struct StandInCopy {
  bool from_stock = false;  ///< from random numbers that the executor has; else from x
  int64_t from_bytes = 0;
  int64_t to_bytes = 0;  ///< in y
  int64_t num_bytes = 0;

  friend bool operator==(const StandInCopy&, const StandInCopy&) = default;
};

inline constexpr int64_t kStockAlignment = 256;

/// What stands in y for that which the others would have sent: this rank's own x, for each of them
/// again; or the stock, for what is received in a message, and where x and its place in y are not
/// aligned in the same way, so that a device would copy with its SMs instead of copy engines. All
/// of y is written. `rank` is a member of the call's group; the stock lies at a multiple of
/// kStockAlignment. Throws InternalError as `check_comm_call`, and for a stock of less than twice
/// that.
std::vector<StandInCopy> stand_in_copies(const CommCall& call, int rank, int64_t stock_bytes);

/// Whether the copy is of bytes onto themselves, as where x is this rank's block of y.
bool copies_nothing(const StandInCopy& copy, const CommCall& call);

/// What the executor of a rank on the host does for a call, made once.
struct EmulatedCall {
  std::vector<StandInCopy> copies;
  int64_t duration_ns = 0;
  bool every_step = true;  ///< makes the copies in the first step only, if false
};

/// Returns when the copies are made, where this step makes them, and the duration is over; waits
/// without using a core.
void run_emulated(const EmulatedCall& emulated, const CommCall& call,
                  std::span<const std::byte> stock, bool is_first_step);

/// Fills a stock: normal numbers in bf16 with a standard deviation of 0.02, as fresh weights have;
/// read as fp32 or f64 they are finite, too.
void fill_stock(std::span<std::byte> stock);

}  // namespace braid
