#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

/// What a step of attention does to the sums of all steps, once cuDNN has its part. Bitwise
/// repeatable; arithmetic in fp32. Launchers allocate nothing and do not wait.
namespace braid {

/// Rows [begin, begin + count) of each sequence's `rows` ones; the parts of sums have just these.
struct RowRange {
  int64_t sequences = 0;
  int64_t rows = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

struct AddRowsArgs {
  const __nv_bfloat16* part = nullptr;  // [sequences * count, width]
  float* sum = nullptr;                 // [sequences * rows, width]
  RowRange range;
  int64_t width = 0;  // a multiple of 8
  bool accumulate = false;
};

/// sum += part in the range; without `accumulate` sum = part there and 0 in the other rows.
/// Pointers are multiples of 16 bytes.
void add_rows(const AddRowsArgs& args, cudaStream_t stream);

struct MergeAttentionArgs {
  const __nv_bfloat16* part = nullptr;  // [sequences * count, heads * head_size]
  const float* part_lse = nullptr;      // [sequences, heads, count]
  float* sum = nullptr;                 // [sequences * rows, heads * head_size]
  float* lse = nullptr;                 // [sequences, heads, rows]
  RowRange range;
  int64_t heads = 0;
  int64_t head_size = 0;  // a multiple of 8
  bool accumulate = false;
};

/// sum and lse of the range become those of the keys that they are of and of the part's: means with
/// weights exp(lse - max) and exp(part_lse - max). Without `accumulate` they become the part's, and
/// sum 0, lse -infinity in the other rows. Pointers of sum and part are multiples of 16 bytes.
void merge_attention(const MergeAttentionArgs& args, cudaStream_t stream);

/// part_lse [sequences, heads, count] = lse [sequences, heads, rows] of the range.
void take_lse(const float* lse, const RowRange& range, int64_t heads, float* part_lse,
              cudaStream_t stream);

}  // namespace braid
