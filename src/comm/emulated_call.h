#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/comm_call.h"
#include "ir/program.h"

/// Communication of a rank whose other ranks do not exist, so that one rank of a run can be run,
/// timed and traced alone. A task takes as long as the real one. It leaves a result of the right
/// size and with plausible values in y, but not the real values. (Megatron and PyTorch call a group
/// without ranks a fake process group; theirs take no time.)
namespace braid {

/// Durations of a rank's tasks that communicate with others, from the time when the rank reaches
/// them.
struct EmulatedPeers {
  std::vector<std::vector<int64_t>> task_ns;  ///< by program and task; entries of other tasks are
                                              ///< ignored
  /// Results of at most this many bytes are produced in every step. Larger ones are produced in the
  /// first step of a program and stay in memory: the memory plan must give them memory that no
  /// other buffer uses (memory/lasting_buffers.h).
  int64_t anew_bytes = INT64_MAX;
  /// The same for floating-point numbers that a layer gathers, if it is less.
  int64_t anew_gathered_bytes = INT64_MAX;

  /// The limit for that task.
  int64_t anew_bytes_of(const Program& program, const Task& task) const;
};

/// A good limit: smaller results include norms, and maxima and sums of a softmax, which must be
/// consistent with the numbers of the step.
inline constexpr int64_t kSmallResultBytes = int64_t{4} << 20;
/// Layers gather data, and scales of FP8 data, which belong to the data of the first step.
inline constexpr int64_t kSmallGatheredBytes = int64_t{64} << 10;

/// One copy of an emulated call, within the memory of its rank.
struct StandInCopy {
  bool from_stock = false;  ///< from the executor's random numbers; otherwise from x
  int64_t from_bytes = 0;
  int64_t to_bytes = 0;  ///< in y
  int64_t num_bytes = 0;

  friend bool operator==(const StandInCopy&, const StandInCopy&) = default;
};

inline constexpr int64_t kStockAlignment = 256;

/// The copies that fill y in place of the other ranks' data. They repeat this rank's own x for each
/// of the other ranks. They use the stock of random numbers for a received message, and where x and
/// its place in y are aligned differently, because a device would then copy with its SMs instead of
/// copy engines; but integers, which are places of rows, are always this rank's. Of blocks of rows
/// of experts (ops/row_blocks.h) they repeat the block for this rank, as if every member had its
/// rows. All of y is written. A direct exchange of rows is not made of copies: `run_emulated` does
/// it as if every member had this rank's rows. `rank` is a member of the call's group; the stock is
/// aligned to kStockAlignment. Throws InternalError as `check_comm_call`, and for a stock of less
/// than twice kStockAlignment.
std::vector<StandInCopy> stand_in_copies(const CommCall& call, int rank, int64_t stock_bytes);

/// Whether source and destination are the same bytes, for example if x is this rank's block of y.
bool copies_nothing(const StandInCopy& copy, const CommCall& call);

/// An emulated call as an executor of the host runs it; made once.
struct EmulatedCall {
  std::vector<StandInCopy> copies;
  int64_t duration_ns = 0;
  bool every_step = true;  ///< false: makes the copies in the first step only
  size_t member = 0;       ///< this rank's index in the group
};

/// Makes the copies, if this step makes them, and returns when the duration has passed. Waits
/// without using a core.
void run_emulated(const EmulatedCall& emulated, const CommCall& call,
                  std::span<const std::byte> stock, bool is_first_step);

/// Fills a stock with normal numbers in bf16 with a standard deviation of 0.02, like fresh weights.
/// Read as fp32 or f64 they are finite, too.
void fill_stock(std::span<std::byte> stock);

}  // namespace braid
