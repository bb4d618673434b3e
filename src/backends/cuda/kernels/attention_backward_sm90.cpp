// The compiled kernel between two of our own (attention_backward_sm90_steps.h). Each of its objects
// exports a launcher, declared by a generated header; the error output of these launchers is not
// used.
#include "backends/cuda/kernels/attention_backward_sm90.h"

#include <attention_backward_128.h>
#include <attention_backward_128_grouped.h>
#include <attention_backward_192.h>
#include <attention_backward_64.h>
#include <attention_backward_64_grouped.h>

#include <algorithm>
#include <array>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/attention_backward_sm90_steps.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/sm90_kernel.h"
#include "ops/attention.h"
#include "ops/attributes.h"

namespace braid {
namespace {

constexpr size_t kAlignment = 16;

/// Operands of the compiled kernel, which takes them as plain pointers.
struct KernelArgs {
  void* qkv = nullptr;
  void* d_out = nullptr;
  void* lse_log2 = nullptr;
  void* d_out_out = nullptr;
  void* d_query = nullptr;
  void* d_key = nullptr;
  void* d_value = nullptr;
  void* semaphores = nullptr;
};

/// The exports of an object made by scripts/sm90_kernels: machine code, and its launcher.
struct CompiledKernel {
  int64_t head_size;
  bool grouped;
  Sm90Kernel code;
  int32_t (*launch)(const KernelArgs& args, const AttentionSizes& sizes, float scale,
                    cudaStream_t stream);
};

template <auto kWrapper>
int32_t call(const KernelArgs& args, const AttentionSizes& sizes, float scale,
             cudaStream_t stream) {
  const auto narrowed = [](int64_t value) { return static_cast<int32_t>(value); };
  return kWrapper(nullptr, args.qkv, args.d_out, args.lse_log2, args.d_out_out, args.d_query,
                  args.d_key, args.d_value, args.semaphores, narrowed(sizes.batches),
                  narrowed(sizes.queries), narrowed(sizes.heads), narrowed(sizes.kv_heads), scale,
                  stream);
}

/// The kernel for these sizes, ready on the device.
const CompiledKernel& ready_kernel(const AttentionSizes& sizes, int device) {
  static std::array<CompiledKernel, 5> kernels = {
      {{64,
        false,
        {_mlir_attention_backward_64_cuda_init, _mlir_attention_backward_64_cuda_load_to_device},
        call<cute_dsl_attention_backward_64_wrapper>},
       {64,
        true,
        {_mlir_attention_backward_64_grouped_cuda_init,
         _mlir_attention_backward_64_grouped_cuda_load_to_device},
        call<cute_dsl_attention_backward_64_grouped_wrapper>},
       {128,
        false,
        {_mlir_attention_backward_128_cuda_init, _mlir_attention_backward_128_cuda_load_to_device},
        call<cute_dsl_attention_backward_128_wrapper>},
       {128,
        true,
        {_mlir_attention_backward_128_grouped_cuda_init,
         _mlir_attention_backward_128_grouped_cuda_load_to_device},
        call<cute_dsl_attention_backward_128_grouped_wrapper>},
       {192,
        false,
        {_mlir_attention_backward_192_cuda_init, _mlir_attention_backward_192_cuda_load_to_device},
        call<cute_dsl_attention_backward_192_wrapper>}}};
  const auto found = std::find_if(kernels.begin(), kernels.end(), [&](const auto& kernel) {
    return kernel.head_size == sizes.head_size && kernel.grouped == (sizes.group() > 1);
  });
  check(found != kernels.end(), "attention_backward: head size {}", sizes.head_size);
  found->code.prepare(device);
  return *found;
}

void launch(const CompiledKernel& compiled, const AttentionSizes& sizes, float scale,
            const CudaKernelArgs& args) {
  const Sm90Scratch scratch(sizes);
  check(all_aligned(kAlignment, {args.operands[0], args.operands[1], args.operands[3],
                                 args.operands[4], args.scratch}),
        "attention_backward: an operand is not {}-byte aligned", kAlignment);
  const auto floats = [&](int64_t at) { return reinterpret_cast<float*>(args.scratch + at); };
  auto* const d_qkv = args.data<__nv_bfloat16>(4);
  auto* const semaphores = reinterpret_cast<int*>(args.scratch + scratch.semaphores_at);
  attention_prepare(sizes,
                    {.out = args.data<__nv_bfloat16>(1),
                     .d_out = args.data<__nv_bfloat16>(3),
                     .lse = args.data<float>(2),
                     .lse_log2 = floats(scratch.lse_log2_at),
                     .d_out_out = floats(scratch.d_out_out_at),
                     .d_query = floats(scratch.d_query_at),
                     .semaphores = semaphores},
                    args.stream);
  KernelArgs kernel_args{.qkv = args.operands[0],
                         .d_out = args.operands[3],
                         .lse_log2 = floats(scratch.lse_log2_at),
                         .d_out_out = floats(scratch.d_out_out_at),
                         .d_query = floats(scratch.d_query_at),
                         .d_key = d_qkv + sizes.heads * sizes.head_size,
                         .d_value = d_qkv + (sizes.heads + sizes.kv_heads) * sizes.head_size,
                         .semaphores = semaphores};
  if (compiled.grouped) {
    kernel_args.d_key = floats(scratch.d_key_at);
    kernel_args.d_value = floats(scratch.d_value_at);
  }
  cuda_check(static_cast<cudaError_t>(compiled.launch(kernel_args, sizes, scale, args.stream)),
             "launch of attention_backward");
  attention_finish(sizes,
                   {.d_query = floats(scratch.d_query_at),
                    .d_key = floats(scratch.d_key_at),
                    .d_value = floats(scratch.d_value_at),
                    .d_qkv = d_qkv,
                    .scale = scale},
                   args.stream);
}

}  // namespace

CudaKernel make_attention_backward_sm90(const OpSpec& spec, CudaContext& context) {
  const AttentionSizes sizes(spec);
  const auto scale = static_cast<float>(attributes_of<AttentionAttributes>(spec).scale);
  const CompiledKernel& compiled = ready_kernel(sizes, context.device());
  return {.launch = [&compiled, sizes,
                     scale](const CudaKernelArgs& args) { launch(compiled, sizes, scale, args); },
          .scratch_bytes = static_cast<size_t>(Sm90Scratch(sizes).size_bytes)};
}

}  // namespace braid
