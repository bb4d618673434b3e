#include "backends/cuda/kernels/attention.h"

#include "backends/cuda/kernels/attention_backward_sm90.h"
#include "backends/cuda/kernels/attention_documents.h"
#include "backends/cuda/kernels/attention_graph.h"
#include "backends/cuda/kernels/attention_sm90.h"
#include "backends/cuda/kernels/factories.h"
#include "ops/attention.h"
#include "ops/attributes.h"

namespace braid {
namespace {

constexpr int64_t kElemBytes = 2;

/// A row of qkv holds the query heads, then the key heads, then the value heads.
AttentionProblem problem_of(const OpSpec& spec) {
  const AttentionSizes sizes(spec);
  const int64_t qkv_width = sizes.out_width() + sizes.kv_width();
  const HeadRows qkv{.row = qkv_width, .sequence = sizes.queries * qkv_width};
  return {.sizes = sizes,
          .scale = static_cast<float>(attributes_of<AttentionAttributes>(spec).scale),
          .causal = true,
          .q = qkv,
          .kv = qkv,
          .out = {.row = sizes.out_width(), .sequence = sizes.queries * sizes.out_width()},
          .d_q = qkv,
          .d_kv = qkv,
          .lse = {.row = sizes.queries, .sequence = sizes.heads * sizes.queries}};
}

/// Offset of keys and values in a row of qkv, in bytes.
int64_t keys_at(const AttentionSizes& sizes) {
  return sizes.out_width() * kElemBytes;
}
int64_t values_at(const AttentionSizes& sizes) {
  return keys_at(sizes) + sizes.kv_width() / 2 * kElemBytes;
}

/// The rows of a whole sequence are its keys, too. `operand`: of the starts, if there are any.
DocumentRows document_rows(const AttentionSizes& sizes, const CudaKernelArgs& args,
                           size_t operand) {
  return {.starts = sizes.documents ? args.data<const int32_t>(operand) : nullptr,
          .sequence = sizes.queries,
          .key_positions = {},
          .kv_sequence = sizes.keys,
          .window = {.limit = sizes.window}};
}

CudaKernel limited_attention(const AttentionProblem& problem) {
  prepare_document_attention(problem.sizes);
  return {.launch = [problem](const CudaKernelArgs& args) {
    std::byte* const qkv = args.operands[0];
    const size_t out = problem.sizes.documents ? 2 : 1;
    launch_document_attention(problem, document_rows(problem.sizes, args, 1),
                              {.q = qkv,
                               .k = qkv + keys_at(problem.sizes),
                               .v = qkv + values_at(problem.sizes),
                               .out = args.operands[out],
                               .lse = args.operands[out + 1]},
                              DocumentResult::kRounded, args.stream);
  }};
}

CudaKernel limited_attention_backward(const AttentionProblem& problem) {
  prepare_document_attention(problem.sizes);
  return {.launch =
              [problem](const CudaKernelArgs& args) {
                std::byte* const qkv = args.operands[0];
                std::byte* const d_qkv = args.operands[problem.sizes.documents ? 5 : 4];
                launch_document_attention_backward(problem, document_rows(problem.sizes, args, 4),
                                                   {.q = qkv,
                                                    .k = qkv + keys_at(problem.sizes),
                                                    .v = qkv + values_at(problem.sizes),
                                                    .out = args.operands[1],
                                                    .lse = args.operands[2],
                                                    .d_out = args.operands[3],
                                                    .d_q = d_qkv,
                                                    .d_k = d_qkv + keys_at(problem.sizes),
                                                    .d_v = d_qkv + values_at(problem.sizes)},
                                                   DocumentResult::kRounded, args.scratch,
                                                   args.stream);
              },
          .scratch_bytes = static_cast<size_t>(document_backward_scratch_bytes(problem.sizes))};
}

}  // namespace

CudaKernel make_cuda_attention(const OpSpec& spec, CudaContext& context) {
  return make_cuda_attention(spec, context, attention_method(AttentionSizes(spec)));
}

CudaKernel make_cuda_attention(const OpSpec& spec, CudaContext& context, AttentionMethod method) {
  const AttentionProblem problem = problem_of(spec);
  check_attention(problem.sizes, spec);
  if (problem.sizes.is_limited()) {
    return limited_attention(problem);
  }
  if (method == AttentionMethod::kSm90) {
    return make_attention_sm90(spec, context);
  }
  const AttentionPlan plan = plan_attention(problem, spec, context);
  return {.launch =
              [launch = plan.launch, sizes = problem.sizes](const CudaKernelArgs& args) {
                std::byte* const qkv = args.operands[0];
                launch({.q = qkv,
                        .k = qkv + keys_at(sizes),
                        .v = qkv + values_at(sizes),
                        .out = args.operands[1],
                        .lse = args.operands[2]},
                       args.scratch, args.stream);
              },
          .scratch_bytes = plan.scratch_bytes};
}

CudaKernel make_cuda_attention_backward(const OpSpec& spec, CudaContext& context) {
  return make_cuda_attention_backward(spec, context, AttentionBackwardOptions{});
}

CudaKernel make_cuda_attention_backward(const OpSpec& spec, CudaContext& context,
                                        const AttentionBackwardOptions& options) {
  const AttentionProblem problem = problem_of(spec);
  if (problem.sizes.is_limited()) {
    check_attention(problem.sizes, spec);
    return limited_attention_backward(problem);
  }
  check_attention_backward(problem.sizes, spec);
  if (options.method.value_or(attention_backward_method(problem.sizes)) == AttentionMethod::kSm90) {
    return make_attention_backward_sm90(spec, context);
  }
  const AttentionPlan plan = plan_attention_backward(problem, spec, context, options);
  return {.launch =
              [launch = plan.launch, sizes = problem.sizes](const CudaKernelArgs& args) {
                std::byte* const qkv = args.operands[0];
                std::byte* const d_qkv = args.operands[4];
                launch({.q = qkv,
                        .k = qkv + keys_at(sizes),
                        .v = qkv + values_at(sizes),
                        .out = args.operands[1],
                        .lse = args.operands[2],
                        .d_out = args.operands[3],
                        .d_q = d_qkv,
                        .d_k = d_qkv + keys_at(sizes),
                        .d_v = d_qkv + values_at(sizes)},
                       args.scratch, args.stream);
              },
          .scratch_bytes = plan.scratch_bytes};
}

}  // namespace braid
