#include "ops/mamba2.h"

#include <iterator>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2.cuh"
#include "ops/attributes.h"

namespace braid {
namespace {

/// Sizes and attributes; no operands yet.
Mamba2Args mamba2_args(const OpSpec& spec, const Mamba2Attributes& a) {
  check_mamba2_limits(spec, a);
  return {.sizes = {.tokens = spec.operands[0].shape[0],
                    .sequence = static_cast<int>(a.sequence),
                    .heads = static_cast<int>(a.heads),
                    .head_size = static_cast<int>(a.head_size),
                    .groups = static_cast<int>(a.groups),
                    .state = static_cast<int>(a.state),
                    .taps = static_cast<int>(spec.operands[1].shape[1]),
                    .norm_groups = static_cast<int>(a.norm_groups),
                    .weight_parts = static_cast<int>(a.weights.count),
                    .weight_part = static_cast<int>(a.weights.index)},
          .dt_min = static_cast<float>(a.dt_min),
          .dt_max = static_cast<float>(a.dt_max),
          .epsilon = static_cast<float>(a.epsilon)};
}

/// The operands that both ops begin with.
void set_inputs(Mamba2Args& o, const CudaKernelArgs& args) {
  o.zxbcdt = args.data<const Mamba2Data>(0);
  o.conv_weight = args.data<const Mamba2Data>(1);
  o.conv_bias = args.data<const Mamba2Data>(2);
  const int heads = o.sizes.weight_part * o.sizes.heads;
  o.dt_bias = args.data<const Mamba2Data>(3) + heads;
  o.a_log = args.data<const Mamba2Data>(4) + heads;
  o.skip = args.data<const Mamba2Data>(5) + heads;
  o.norm_weight = args.data<const Mamba2Data>(6) + o.sizes.weight_part * o.sizes.inner();
}

Mamba2WeightGrads weight_grads(const Mamba2Sizes& s, const CudaKernelArgs& args, bool accumulate) {
  const int heads = s.weight_part * s.heads;
  return {.conv_weight = args.data<float>(11),
          .conv_bias = args.data<float>(12),
          .dt_bias = args.data<float>(13) + heads,
          .a_log = args.data<float>(14) + heads,
          .skip = args.data<float>(15) + heads,
          .norm_weight = args.data<float>(16) + s.weight_part * s.inner(),
          .accumulate = accumulate};
}

/// Sets the gradients of all weights to 0, those of other parts too.
void clear_weight_grads(const Mamba2Sizes& s, const CudaKernelArgs& args) {
  const int64_t elems[] = {
      int64_t{s.convolved()} * s.taps, s.convolved(), s.heads, s.heads, s.heads, s.inner()};
  for (size_t i = 0; i < std::size(elems); ++i) {
    const auto bytes = static_cast<size_t>(s.weight_parts * elems[i]) * sizeof(float);
    BRAID_CUDA_CHECK(cudaMemsetAsync(args.data<float>(11 + i), 0, bytes, args.stream));
  }
}

void set_forward_scratch(Mamba2Args& o, const Mamba2Scratch& scratch, std::byte* at) {
  o.dt = reinterpret_cast<float*>(at + scratch.dt);
  o.decay = reinterpret_cast<float*>(at + scratch.decay);
  o.to_end = reinterpret_cast<float*>(at + scratch.to_end);
  o.from_begin = reinterpret_cast<float*>(at + scratch.from_begin);
  o.xbc = reinterpret_cast<Mamba2Data*>(at + scratch.xbc);
  o.states = reinterpret_cast<Mamba2Data*>(at + scratch.states);
}

void set_backward_scratch(Mamba2Args& o, const Mamba2Scratch& scratch, std::byte* at) {
  o.dy = reinterpret_cast<Mamba2Data*>(at + scratch.dy);
  o.dx = reinterpret_cast<Mamba2Data*>(at + scratch.dx);
  o.d_states = reinterpret_cast<Mamba2Data*>(at + scratch.d_states);
  o.d_factors = reinterpret_cast<float*>(at + scratch.d_factors);
  o.d_decay = reinterpret_cast<float*>(at + scratch.d_decay);
  o.d_dt = reinterpret_cast<float*>(at + scratch.d_dt);
  o.dy_x = reinterpret_cast<float*>(at + scratch.dy_x);
  o.partials = reinterpret_cast<float*>(at + scratch.partials);
}

}  // namespace

CudaKernel make_cuda_mamba2(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<Mamba2Attributes>(spec);
  const Mamba2Args shape = mamba2_args(spec, attributes);
  const Mamba2Scratch scratch(spec, attributes, false);
  return {.launch =
              [shape, scratch](const CudaKernelArgs& args) {
                Mamba2Args o = shape;
                set_inputs(o, args);
                set_forward_scratch(o, scratch, args.scratch);
                o.y = args.data<Mamba2Data>(7);
                o.rstd = args.data<float>(8);
                launch_mamba2_steps(o, args.stream);
                launch_mamba2_conv(o, args.stream);
                launch_mamba2_states(o, args.stream);
                launch_mamba2_chunks(o, args.stream);
                launch_mamba2_norm(o, args.data<Mamba2Data>(9), args.stream);
              },
          .scratch_bytes = scratch.bytes};
}

CudaKernel make_cuda_mamba2_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<Mamba2BackwardAttributes>(spec);
  const Mamba2Args shape = mamba2_args(spec, attributes.core);
  const Mamba2Scratch scratch(spec, attributes.core, true);
  return {.launch =
              [shape, scratch, accumulate = attributes.accumulate](const CudaKernelArgs& args) {
                Mamba2Args o = shape;
                set_inputs(o, args);
                set_forward_scratch(o, scratch, args.scratch);
                set_backward_scratch(o, scratch, args.scratch);
                o.y = args.data<Mamba2Data>(7);
                o.rstd = args.data<float>(8);
                o.dv = args.data<const Mamba2Data>(9);
                o.d_zxbcdt = args.data<Mamba2Data>(10);
                const bool has_others = o.sizes.weight_parts > 1;
                if (!accumulate && has_others) {
                  clear_weight_grads(o.sizes, args);
                }
                const Mamba2WeightGrads grads =
                    weight_grads(o.sizes, args, accumulate || has_others);
                launch_mamba2_steps(o, args.stream);
                launch_mamba2_conv(o, args.stream);
                launch_mamba2_states(o, args.stream);
                launch_mamba2_norm_backward(o, grads, args.stream);
                launch_mamba2_d_states(o, args.stream);
                launch_mamba2_chunks_backward(o, args.stream);
                launch_mamba2_steps_backward(o, grads, args.stream);
                launch_mamba2_conv_backward(o, grads, args.stream);
              },
          .scratch_bytes = scratch.bytes};
}

}  // namespace braid
