// cuDNN gives the result of one step in bf16, normalized by the step's own log-sum-exp; scratch
// holds it until it is merged into the f32 sums of all steps (attention_merge.h). So each step's
// part is rounded to bf16 once, and the sum of all once more. The backward uses out and lse of all
// keys: cuDNN's probabilities are then those of the whole attention, and its results are the terms
// of the gradients. Inside documents and windows, kernels of our own add to the f32 sums of all
// steps (attention_documents.h).
#include "ops/attention_step.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/attention_documents.h"
#include "backends/cuda/kernels/attention_graph.h"
#include "backends/cuda/kernels/attention_merge.h"
#include "backends/cuda/kernels/factories.h"
#include "ops/attributes.h"

namespace braid {
namespace {

constexpr int64_t kElemBytes = 2;

/// A step with the sizes for addressing its operands, in elements.
struct Step : AttentionStepAttributes {
  AttentionSizes sizes;
  bool is_backward = false;
  AttentionStepParts parts;

  Step(const AttentionStepAttributes& attributes, const OpSpec& spec, bool backward)
      : AttentionStepAttributes(attributes),
        sizes(spec),
        is_backward(backward),
        parts(sizes, backward) {}

  int64_t qkv_width() const { return sizes.out_width() + sizes.kv_width(); }
  RowRange query_range() const { return {sizes.batches, sequence, query_begin, queries}; }
  RowRange key_range() const { return {sizes.batches, kv_sequence, key_begin, keys}; }

  /// The backward reads out, d_out and lse of all keys from the operands. For a range of queries
  /// lse is copied, since the rows of a call must be contiguous.
  AttentionProblem problem() const {
    const auto rows_of = [](int64_t width, int64_t rows) {
      return HeadRows{.row = width, .sequence = rows * width};
    };
    return {.sizes = sizes,
            .scale = static_cast<float>(scale),
            .causal = causal,
            .q = rows_of(qkv_width(), sequence),
            .kv = rows_of(sizes.kv_width(), kv_sequence),
            .out = rows_of(sizes.out_width(), is_backward ? sequence : queries),
            .d_q = rows_of(sizes.out_width(), queries),
            .d_kv = rows_of(sizes.kv_width(), keys),
            .lse = rows_of(queries, heads)};
  }

  /// The first row of the range of queries, and of keys, in rows of `width` elements.
  std::byte* first_query(std::byte* rows, int64_t width) const {
    return rows + query_begin * width * kElemBytes;
  }
  std::byte* first_key(std::byte* kv) const {
    return kv + key_begin * sizes.kv_width() * kElemBytes;
  }
  /// Values follow the keys of a row.
  std::byte* values(std::byte* key_heads) const {
    return key_heads + sizes.kv_width() / 2 * kElemBytes;
  }
};

void run_step(const Step& step, const AttentionPlan& plan, const CudaKernelArgs& args) {
  std::byte* const out = args.scratch + step.parts.query_rows;
  std::byte* const lse = args.scratch + step.parts.lse;
  std::byte* const keys = step.first_key(args.operands[1]);
  plan.launch({.q = step.first_query(args.operands[0], step.qkv_width()),
               .k = keys,
               .v = step.values(keys),
               .out = out,
               .lse = lse},
              args.scratch + step.parts.rest, args.stream);
  merge_attention({.part = reinterpret_cast<const __nv_bfloat16*>(out),
                   .part_lse = reinterpret_cast<const float*>(lse),
                   .sum = args.data<float>(2),
                   .lse = args.data<float>(3),
                   .range = step.query_range(),
                   .heads = step.heads,
                   .head_size = step.head_size,
                   .accumulate = step.accumulate},
                  args.stream);
}

/// lse of the queries of the range, [batches, heads, queries].
std::byte* lse_of_range(const Step& step, const CudaKernelArgs& args) {
  if (step.queries == step.sequence) {
    return args.operands[3];
  }
  std::byte* const lse = args.scratch + step.parts.lse;
  take_lse(args.data<const float>(3), step.query_range(), step.heads, reinterpret_cast<float*>(lse),
           args.stream);
  return lse;
}

void run_step_backward(const Step& step, const AttentionStepBackwardAttributes& attributes,
                       const AttentionPlan& plan, const CudaKernelArgs& args) {
  const int64_t out_width = step.sizes.out_width();
  std::byte* const keys = step.first_key(args.operands[1]);
  std::byte* const d_q = args.scratch + step.parts.query_rows;
  std::byte* const d_kv = args.scratch + step.parts.kv_rows;
  plan.launch({.q = step.first_query(args.operands[0], step.qkv_width()),
               .k = keys,
               .v = step.values(keys),
               .out = step.first_query(args.operands[2], out_width),
               .lse = lse_of_range(step, args),
               .d_out = step.first_query(args.operands[4], out_width),
               .d_q = d_q,
               .d_k = d_kv,
               .d_v = step.values(d_kv)},
              args.scratch + step.parts.rest, args.stream);
  add_rows({.part = reinterpret_cast<const __nv_bfloat16*>(d_q),
            .sum = args.data<float>(5),
            .range = step.query_range(),
            .width = out_width,
            .accumulate = attributes.accumulate_q},
           args.stream);
  add_rows({.part = reinterpret_cast<const __nv_bfloat16*>(d_kv),
            .sum = args.data<float>(6),
            .range = step.key_range(),
            .width = step.sizes.kv_width(),
            .accumulate = attributes.accumulate_kv},
           args.stream);
}

// ---- inside documents and windows

/// The f32 sums [rows, width] of all steps as results of one: rows from the first of a range on.
HeadRows sum_rows(int64_t rows, int64_t width) {
  return {.row = width, .sequence = rows * width};
}

std::byte* row_of(std::byte* rows, int64_t row, int64_t elems, int64_t elem_bytes) {
  return rows + row * elems * elem_bytes;
}

/// The problem with out or d_q, d_kv and lse of all rows, in which the range lies.
AttentionProblem document_problem(const Step& step) {
  AttentionProblem problem = step.problem();
  problem.out = sum_rows(step.sequence, step.sizes.out_width());
  problem.d_q = problem.out;
  problem.d_kv = sum_rows(step.kv_sequence, step.sizes.kv_width());
  problem.lse = {.row = step.sequence, .sequence = step.heads * step.sequence};
  return problem;
}

/// `operand`: of the starts, if there are any.
DocumentRows document_rows(const Step& step, const CudaKernelArgs& args, size_t operand) {
  return {.starts =
              step.sizes.documents ? args.data<const int32_t>(operand) + step.query_begin : nullptr,
          .sequence = step.sequence,
          .key_positions = step.key_positions,
          .kv_sequence = step.kv_sequence,
          .key_begin = step.key_begin,
          .window = step.window,
          .query_begin = step.query_begin};
}

void fill_zeros(std::byte* sums, int64_t elems, cudaStream_t stream) {
  BRAID_CUDA_CHECK(cudaMemsetAsync(sums, 0, static_cast<size_t>(elems) * sizeof(float), stream));
}

void run_document_step(const Step& step, const CudaKernelArgs& args) {
  constexpr int64_t kFloat = sizeof(float);
  const int64_t rows = step.sizes.batches * step.sequence;
  const size_t results = step.sizes.documents ? 3 : 2;
  std::byte* const sum = args.operands[results];
  std::byte* const lse = args.operands[results + 1];
  if (!step.accumulate) {
    fill_zeros(sum, rows * step.sizes.out_width(), args.stream);
    fill_no_keys(args.data<float>(results + 1), rows * step.heads, args.stream);
  }
  std::byte* const keys = step.first_key(args.operands[1]);
  launch_document_attention(document_problem(step), document_rows(step, args, 2),
                            {.q = step.first_query(args.operands[0], step.qkv_width()),
                             .k = keys,
                             .v = step.values(keys),
                             .out = row_of(sum, step.query_begin, step.sizes.out_width(), kFloat),
                             .lse = row_of(lse, step.query_begin, 1, kFloat)},
                            DocumentResult::kMerged, args.stream);
}

void run_document_step_backward(const Step& step, const AttentionStepBackwardAttributes& attributes,
                                const CudaKernelArgs& args) {
  constexpr int64_t kFloat = sizeof(float);
  const int64_t out_width = step.sizes.out_width();
  const int64_t kv_width = step.sizes.kv_width();
  const size_t results = step.sizes.documents ? 6 : 5;
  std::byte* const d_q = args.operands[results];
  std::byte* const d_kv = args.operands[results + 1];
  if (!attributes.accumulate_q) {
    fill_zeros(d_q, step.sizes.batches * step.sequence * out_width, args.stream);
  }
  if (!attributes.accumulate_kv) {
    fill_zeros(d_kv, step.sizes.batches * step.kv_sequence * kv_width, args.stream);
  }
  std::byte* const keys = step.first_key(args.operands[1]);
  std::byte* const d_keys = row_of(d_kv, step.key_begin, kv_width, kFloat);
  launch_document_attention_backward(document_problem(step), document_rows(step, args, 5),
                                     {.q = step.first_query(args.operands[0], step.qkv_width()),
                                      .k = keys,
                                      .v = step.values(keys),
                                      .out = step.first_query(args.operands[2], out_width),
                                      .lse = row_of(args.operands[3], step.query_begin, 1, kFloat),
                                      .d_out = step.first_query(args.operands[4], out_width),
                                      .d_q = row_of(d_q, step.query_begin, out_width, kFloat),
                                      .d_k = d_keys,
                                      .d_v = d_keys + kv_width / 2 * kFloat},
                                     DocumentResult::kMerged, args.scratch, args.stream);
}

}  // namespace

CudaKernel make_cuda_attention_step(const OpSpec& spec, CudaContext& context) {
  const Step step(attributes_of<AttentionStepAttributes>(spec), spec, /*backward=*/false);
  if (step.sizes.is_limited()) {
    check_attention(step.sizes, spec);
    prepare_document_attention(step.sizes);
    return {.launch = [step](const CudaKernelArgs& args) { run_document_step(step, args); }};
  }
  const AttentionPlan plan = plan_attention(step.problem(), spec, context);
  return {.launch = [step, plan](const CudaKernelArgs& args) { run_step(step, plan, args); },
          .scratch_bytes = static_cast<size_t>(step.parts.rest) + plan.scratch_bytes};
}

CudaKernel make_cuda_attention_step_backward(const OpSpec& spec, CudaContext& context) {
  return make_cuda_attention_step_backward(spec, context, AttentionBackwardOptions{});
}

CudaKernel make_cuda_attention_step_backward(const OpSpec& spec, CudaContext& context,
                                             const AttentionBackwardOptions& options) {
  const auto attributes = attributes_of<AttentionStepBackwardAttributes>(spec);
  const Step step(attributes.step, spec, /*backward=*/true);
  if (step.sizes.is_limited()) {
    check_attention(step.sizes, spec);  // one query with one key is no limit of our own kernels
    prepare_document_attention(step.sizes);
    return {.launch =
                [step, attributes](const CudaKernelArgs& args) {
                  run_document_step_backward(step, attributes, args);
                },
            .scratch_bytes = static_cast<size_t>(document_backward_scratch_bytes(step.sizes))};
  }
  const AttentionPlan plan = plan_attention_backward(step.problem(), spec, context, options);
  return {.launch =
              [step, attributes, plan](const CudaKernelArgs& args) {
                run_step_backward(step, attributes, plan, args);
              },
          .scratch_bytes = static_cast<size_t>(step.parts.rest) + plan.scratch_bytes};
}

}  // namespace braid
