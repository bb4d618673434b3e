#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

/// Merges the result of one attention step by cuDNN into the sums of all steps. Bitwise repeatable;
/// arithmetic in fp32. Launchers allocate nothing and do not wait.
namespace braid {

/// Rows [begin, begin + count) of the `rows` rows of each sequence; the parts have only these rows.
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

/// In the range, combines the sum with the part: the new sum is the mean with weights exp(lse -
/// max) and exp(part_lse - max), and the new lse is that of all keys. Without `accumulate` they
/// become the part's, and in the other rows sum = 0 and lse = -infinity. Pointers of sum and part
/// are multiples of 16 bytes.
void merge_attention(const MergeAttentionArgs& args, cudaStream_t stream);

/// part_lse [sequences, heads, count] = lse [sequences, heads, rows] of the range.
void take_lse(const float* lse, const RowRange& range, int64_t heads, float* part_lse,
              cudaStream_t stream);

}  // namespace braid
