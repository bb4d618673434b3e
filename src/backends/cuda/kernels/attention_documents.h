#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backends/cuda/kernels/attention_graph.h"
#include "ops/attention_window.h"
#include "ops/positions.h"

/// Attention inside documents (ops/documents.h) and sliding windows (ops/attention_window.h), where
/// cuDNN and flash-attn-4 would need room for a fixed number of documents and cuDNN's bitwise
/// repeatable backward d_scores of each of them as long as a sequence. Our kernels read where the
/// document of each row begins and skip tiles of keys and queries that share none, so any documents
/// are exact and the launch is the same for all. A window is one more limit of the first key that a
/// query sees. bf16, sums in fp32; probabilities and d_scores are rounded to bf16 for the second
/// products. Bitwise repeatable: a block computes its queries, or its keys, alone, in order. Tensor
/// cores by mma.m16n8k16. Source: Dao, FlashAttention-2, 2023, with d_query in a kernel of its own,
/// which repeats two of the five products and needs no sums over blocks.
namespace braid {

/// Which queries see which keys, besides AttentionProblem::causal.
struct DocumentRows {
  const int32_t* starts = nullptr;  ///< of the first query of the first sequence; null: a sequence
                                    ///< is one document
  int64_t sequence = 0;             ///< from there to the first query of the next sequence
  TokenPositions key_positions;     ///< of the `kv_sequence` keys of a sequence
  int64_t kv_sequence = 0;
  int64_t key_begin = 0;    ///< the first key of the problem is this one of them
  StepWindow window;        ///< with positions of the queries of a sequence
  int64_t query_begin = 0;  ///< the first query of the problem is this one of them
};

enum class DocumentResult {
  kRounded,  ///< bf16 results that are overwritten
  kMerged,  ///< fp32 sums: the forward merges into out and lse by the log-sum-exp of both, where no
            ///< keys are lse = -infinity; the backward adds to d_q, d_k and d_v
};

/// Prepare the kernels for these sizes on the current device; call once before the launches.
void prepare_document_attention(const AttentionSizes& sizes);

/// As AttentionPlan::launch. Pointers to bf16 are multiples of 16 bytes, and so are rows.
void launch_document_attention(const AttentionProblem& problem, const DocumentRows& documents,
                               const AttentionPointers& at, DocumentResult result,
                               cudaStream_t stream);
void launch_document_attention_backward(const AttentionProblem& problem,
                                        const DocumentRows& documents, const AttentionPointers& at,
                                        DocumentResult result, std::byte* scratch,
                                        cudaStream_t stream);  // document_backward_scratch_bytes

/// Sets `count` floats to -infinity: lse before the first merge.
void fill_no_keys(float* lse, int64_t count, cudaStream_t stream);

}  // namespace braid
