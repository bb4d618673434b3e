#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/comm_call.h"

namespace braid {

/// Blocks of the kernel; each fills less than half of an SM.
inline constexpr int kRowExchangeBlocks = 32;
inline constexpr size_t kMaxRowExchangeMembers = 128;
inline constexpr int64_t kMaxRowExchangeExperts = 1024;

/// What a rank reaches of the members of a group: y and y_weights of dispatch_rows, x and weights
/// of combine_rows.
struct ReachedRows {
  std::vector<std::byte*> rows;     ///< by member; null: not written
  std::vector<std::byte*> weights;  ///< the same; empty without weights
};

/// Enqueues this rank's part in a call of dispatch_rows or combine_rows (ops/expert_exchange.h).
/// The owner of rows moves them: it writes its rows into the memory of the members that hold their
/// experts, and reads them back from there. So members must have begun before it is enqueued, and
/// each call ends when all members have moved theirs (backends/copy_steps.h). The places of rows
/// follow from the offsets in device memory; only as many bytes cross a link as there are rows.
///
/// bf16 or f32 rows, f32 weights. Throws InternalError
/// for other dtypes, and for more than kMaxRowExchangeMembers members or kMaxRowExchangeExperts
/// experts.
void launch_row_exchange(const CommCall& call, size_t member, const ReachedRows& reached,
                         cudaStream_t stream, int blocks = kRowExchangeBlocks);

/// The same as if every member had this rank's rows and offsets: see comm/emulated_call.h.
void launch_emulated_row_exchange(const CommCall& call, size_t member, cudaStream_t stream);

}  // namespace braid
