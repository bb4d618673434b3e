#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/comm_call.h"
#include "ops/expert_exchange.h"

namespace braid {

inline constexpr size_t kMaxRowExchangeMembers = 128;
/// Of experts times the members that share each.
inline constexpr int64_t kMaxRowExchangeRuns = 4095;

/// x and its weights on each member of a group, at addresses of this device.
struct RowsOfMembers {
  std::vector<const std::byte*> rows;     ///< by member
  std::vector<const std::byte*> weights;  ///< the same; empty without weights
  std::vector<const std::byte*> scales;   ///< the same; empty without scales
  /// In device memory: not 0 once the run has failed. Offsets of all may then be of nothing, and
  /// memory of other ranks gone, so no row is moved, and the experts of dispatch_rows get none.
  /// Null if a run cannot fail.
  const uint32_t* failed = nullptr;
};

/// Enqueues this rank's part in a call of dispatch_rows or combine_rows (ops/expert_exchange.h): it
/// fetches the rows of its y from the members that have them. So all x must be complete before it
/// is enqueued, and a call ends when all members have fetched theirs (backends/copy_steps.h). The
/// places of rows follow from the offsets in device memory; only as many bytes cross a link as
/// there are rows. (Reading over NVLink is twice as fast as writing here: bench/notes.md.)
///
/// bf16 or f32 rows, f32 weights; also FP8 rows with their scales, to experts. Throws InternalError
/// for other dtypes, and for more members or runs than the limits above.
///
/// `blocks` of the kernel, each of which fills a quarter of an SM; 0: as many as the group's
/// exchanges take (row_exchange_sms). More than 16 bring little (bench/notes.md).
void launch_row_exchange(const CommCall& call, size_t member, const RowsOfMembers& members,
                         cudaStream_t stream, int blocks = 0);

/// The same as if every member had this rank's rows and offsets: see comm/emulated_call.h.
void launch_emulated_row_exchange(const CommCall& call, size_t member, cudaStream_t stream);

}  // namespace braid
