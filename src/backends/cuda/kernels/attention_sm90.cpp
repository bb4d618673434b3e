// A generated header declares the object's launcher; its error output is not used.
#include "backends/cuda/kernels/attention_sm90.h"

#include <attention_forward_128.h>
#include <attention_forward_64.h>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/attention_calls.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/sm90_kernel.h"
#include "ops/attention.h"
#include "ops/attributes.h"

namespace braid {
namespace {

constexpr size_t kAlignment = 16;

template <auto kWrapper>
void launch(const AttentionSizes& sizes, float scale, const CudaKernelArgs& args) {
  check(all_aligned(kAlignment, {args.operands[0], args.operands[1]}),
        "attention: an operand is not {}-byte aligned", kAlignment);
  const auto narrowed = [](int64_t value) { return static_cast<int32_t>(value); };
  const int32_t status = kWrapper(
      nullptr, args.operands[0], args.operands[1], args.operands[2], narrowed(sizes.batches),
      narrowed(sizes.queries), narrowed(sizes.heads), narrowed(sizes.kv_heads), scale, args.stream);
  cuda_check(static_cast<cudaError_t>(status), "launch of attention");
}

}  // namespace

CudaKernel make_attention_sm90(const OpSpec& spec, CudaContext& context) {
  static Sm90Kernel head_size_64(_mlir_attention_forward_64_cuda_init,
                                 _mlir_attention_forward_64_cuda_load_to_device);
  static Sm90Kernel head_size_128(_mlir_attention_forward_128_cuda_init,
                                  _mlir_attention_forward_128_cuda_load_to_device);
  const AttentionSizes sizes(spec);
  check(has_attention_sm90(sizes), "op {}: head size {}", spec.op, sizes.head_size);
  const bool is_64 = sizes.head_size == 64;
  (is_64 ? head_size_64 : head_size_128).prepare(context.device());
  const auto run = is_64 ? &launch<cute_dsl_attention_forward_64_wrapper>
                         : &launch<cute_dsl_attention_forward_128_wrapper>;
  const auto scale = static_cast<float>(attributes_of<AttentionAttributes>(spec).scale);
  return {.launch = [run, sizes, scale](const CudaKernelArgs& args) { run(sizes, scale, args); }};
}

}  // namespace braid
