// cuDNN gives the result of one step in bf16, normalized by the step's own log-sum-exp; scratch
// holds it until it is merged into the f32 sums of all steps (attention_merge.h). So each step's
// part is rounded to bf16 once, and the sum of all once more. The backward uses out and lse of all
// keys: cuDNN's probabilities are then those of the whole attention, and its results are the terms
// of the gradients.
#include "ops/attention_step.h"

#include "backends/cuda/kernels/attention.h"
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

}  // namespace

CudaKernel make_cuda_attention_step(const OpSpec& spec, CudaContext& context) {
  const Step step(attributes_of<AttentionStepAttributes>(spec), spec, /*backward=*/false);
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
  const AttentionPlan plan = plan_attention_backward(step.problem(), spec, context, options);
  return {.launch =
              [step, attributes, plan](const CudaKernelArgs& args) {
                run_step_backward(step, attributes, plan, args);
              },
          .scratch_bytes = static_cast<size_t>(step.parts.rest) + plan.scratch_bytes};
}

}  // namespace braid
