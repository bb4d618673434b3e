#include "ops/mamba2.h"

#include <iterator>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2.cuh"
#include "ops/attributes.h"
#include "ops/mamba2_section.h"

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

/// The gradients of weights, operands from `first` on.
Mamba2WeightGrads weight_grads(const Mamba2Sizes& s, const CudaKernelArgs& args, size_t first,
                               bool accumulate) {
  const int heads = s.weight_part * s.heads;
  return {.conv_weight = args.data<float>(first),
          .conv_bias = args.data<float>(first + 1),
          .dt_bias = args.data<float>(first + 2) + heads,
          .a_log = args.data<float>(first + 3) + heads,
          .skip = args.data<float>(first + 4) + heads,
          .norm_weight = args.data<float>(first + 5) + s.weight_part * s.inner(),
          .accumulate = accumulate};
}

/// Sets the gradients of all weights to 0, those of other parts too.
void clear_weight_grads(const Mamba2Sizes& s, const CudaKernelArgs& args, size_t first) {
  const int64_t elems[] = {
      int64_t{s.convolved()} * s.taps, s.convolved(), s.heads, s.heads, s.heads, s.inner()};
  for (size_t i = 0; i < std::size(elems); ++i) {
    const auto bytes = static_cast<size_t>(s.weight_parts * elems[i]) * sizeof(float);
    BRAID_CUDA_CHECK(cudaMemsetAsync(args.data<float>(first + i), 0, bytes, args.stream));
  }
}

/// The kernels over chunks of a family, for y, for states and for gradients.
struct ChunkKernels {
  using Launch = void (*)(const Mamba2Args&, cudaStream_t);
  Launch forward;
  Launch states;
  Launch d_states;
  Launch backward;
};

ChunkKernels chunk_kernels(Mamba2Family family) {
  if (family == Mamba2Family::kHopper) {
    return {.forward = launch_mamba2_scan_sm90,
            .states = launch_mamba2_states_sm90,
            .d_states = launch_mamba2_d_states_sm90,
            .backward = launch_mamba2_chunks_backward_sm90};
  }
  return {.forward =
              [](const Mamba2Args& args, cudaStream_t stream) {
                launch_mamba2_states(args, stream);
                launch_mamba2_chunks(args, stream);
              },
          .states = launch_mamba2_states,
          .d_states = launch_mamba2_d_states,
          .backward = launch_mamba2_chunks_backward};
}

/// What the op does not use stays null.
void set_scratch(Mamba2Args& o, const Mamba2Scratch& scratch, Mamba2Use use, std::byte* at) {
  o.dt = reinterpret_cast<float*>(at + scratch.dt);
  o.decay = reinterpret_cast<float*>(at + scratch.decay);
  o.to_end = reinterpret_cast<float*>(at + scratch.to_end);
  o.from_begin = reinterpret_cast<float*>(at + scratch.from_begin);
  o.xbc = reinterpret_cast<Mamba2Data*>(at + scratch.xbc);
  if (use == Mamba2Use::kStateGrads || use == Mamba2Use::kBackward) {
    o.dy = reinterpret_cast<Mamba2Data*>(at + scratch.dy);
  }
  const bool is_scan = use == Mamba2Use::kForward && scratch.family == Mamba2Family::kHopper;
  if (is_scan) {
    o.products = reinterpret_cast<float*>(at + scratch.products);
  } else if (use == Mamba2Use::kForward || use == Mamba2Use::kBackward) {
    o.states = reinterpret_cast<Mamba2Data*>(at + scratch.states);
  }
  if (use == Mamba2Use::kBackward) {
    o.dx = reinterpret_cast<Mamba2Data*>(at + scratch.dx);
    o.d_states = reinterpret_cast<Mamba2Data*>(at + scratch.d_states);
    o.d_factors = reinterpret_cast<float*>(at + scratch.d_factors);
    o.d_decay = reinterpret_cast<float*>(at + scratch.d_decay);
    o.d_dt = reinterpret_cast<float*>(at + scratch.d_dt);
    o.dy_x = reinterpret_cast<float*>(at + scratch.dy_x);
    o.partials = reinterpret_cast<float*>(at + scratch.partials);
  }
}

/// Rows in front of sections, and the states there.
void set_section_begins(Mamba2Args& o, const CudaKernelArgs& args) {
  o.before = args.data<const Mamba2Data>(7);
  o.initial = args.data<const float>(8);
}

/// y, rstd and v are the operands from `results` on.
void launch_forward(const ChunkKernels& kernels, Mamba2Args o, const CudaKernelArgs& args,
                    size_t results) {
  o.y = args.data<Mamba2Data>(results);
  o.rstd = args.data<float>(results + 1);
  launch_mamba2_steps(o, args.stream);
  launch_mamba2_conv(o, args.stream);
  kernels.forward(o, args.stream);
  launch_mamba2_norm(o, args.data<Mamba2Data>(results + 2), args.stream);
}

/// y, rstd and dv are the operands from `results` on.
void set_results(Mamba2Args& o, const CudaKernelArgs& args, size_t results) {
  o.y = args.data<Mamba2Data>(results);
  o.rstd = args.data<float>(results + 1);
  o.dv = args.data<const Mamba2Data>(results + 2);
}

/// d_zxbcdt is operand `d_zxbcdt`, and the gradients of weights follow it.
void launch_backward(const ChunkKernels& kernels, Mamba2Args o, const CudaKernelArgs& args,
                     size_t d_zxbcdt, bool accumulate) {
  o.d_zxbcdt = args.data<Mamba2Data>(d_zxbcdt);
  const bool has_others = o.sizes.weight_parts > 1;
  if (!accumulate && has_others) {
    clear_weight_grads(o.sizes, args, d_zxbcdt + 1);
  }
  const Mamba2WeightGrads grads =
      weight_grads(o.sizes, args, d_zxbcdt + 1, accumulate || has_others);
  launch_mamba2_steps(o, args.stream);
  launch_mamba2_conv(o, args.stream);
  kernels.states(o, args.stream);
  launch_mamba2_norm_backward(o, grads, args.stream);
  kernels.d_states(o, args.stream);
  kernels.backward(o, args.stream);
  launch_mamba2_steps_backward(o, grads, args.stream);
  launch_mamba2_conv_backward(o, grads, args.stream);
}

/// A kernel of any of the ops: launch(kernels over chunks, args of the op with inputs and
/// scratch, operands).
template <class Launch>
CudaKernel make_kernel(const OpSpec& spec, const Mamba2Attributes& attributes, Mamba2Use use,
                       const Launch& launch) {
  const Mamba2Args shape = mamba2_args(spec, attributes);
  const Mamba2Scratch scratch(spec, attributes, use);
  return {.launch =
              [shape, scratch, kernels = chunk_kernels(scratch.family), use,
               launch](const CudaKernelArgs& args) {
                Mamba2Args o = shape;
                set_inputs(o, args);
                set_scratch(o, scratch, use, args.scratch);
                launch(kernels, o, args);
              },
          .scratch_bytes = scratch.bytes};
}

}  // namespace

CudaKernel make_cuda_mamba2(const OpSpec& spec, CudaContext& /*context*/) {
  return make_kernel(spec, attributes_of<Mamba2Attributes>(spec), Mamba2Use::kForward,
                     [](const ChunkKernels& kernels, const Mamba2Args& o,
                        const CudaKernelArgs& args) { launch_forward(kernels, o, args, 7); });
}

CudaKernel make_cuda_mamba2_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<Mamba2BackwardAttributes>(spec);
  return make_kernel(spec, attributes.core, Mamba2Use::kBackward,
                     [accumulate = attributes.accumulate](const ChunkKernels& kernels, Mamba2Args o,
                                                          const CudaKernelArgs& args) {
                       set_results(o, args, 7);
                       launch_backward(kernels, o, args, 10, accumulate);
                     });
}

CudaKernel make_cuda_mamba2_section(const OpSpec& spec, CudaContext& /*context*/) {
  return make_kernel(spec, attributes_of<Mamba2SectionAttributes>(spec).core, Mamba2Use::kForward,
                     [](const ChunkKernels& kernels, Mamba2Args o, const CudaKernelArgs& args) {
                       set_section_begins(o, args);
                       launch_forward(kernels, o, args, 9);
                     });
}

CudaKernel make_cuda_mamba2_section_states(const OpSpec& spec, CudaContext& /*context*/) {
  return make_kernel(spec, attributes_of<Mamba2Attributes>(spec), Mamba2Use::kStates,
                     [](const ChunkKernels& kernels, Mamba2Args o, const CudaKernelArgs& args) {
                       o.before = args.data<const Mamba2Data>(7);
                       o.summaries = args.data<float>(8);
                       launch_mamba2_steps(o, args.stream);
                       launch_mamba2_conv(o, args.stream);
                       kernels.states(o, args.stream);
                       launch_mamba2_decays(o, args.stream);
                     });
}

CudaKernel make_cuda_mamba2_section_state_grads(const OpSpec& spec, CudaContext& /*context*/) {
  return make_kernel(spec, attributes_of<Mamba2Attributes>(spec), Mamba2Use::kStateGrads,
                     [](const ChunkKernels& kernels, Mamba2Args o, const CudaKernelArgs& args) {
                       o.before = args.data<const Mamba2Data>(7);
                       set_results(o, args, 8);
                       o.summaries = args.data<float>(11);
                       launch_mamba2_steps(o, args.stream);
                       launch_mamba2_conv(o, args.stream);
                       launch_mamba2_dy(o, args.stream);
                       kernels.d_states(o, args.stream);
                       launch_mamba2_decays(o, args.stream);
                     });
}

CudaKernel make_cuda_mamba2_section_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<Mamba2BackwardAttributes>(spec);
  return make_kernel(spec, attributes.core, Mamba2Use::kBackward,
                     [accumulate = attributes.accumulate](const ChunkKernels& kernels, Mamba2Args o,
                                                          const CudaKernelArgs& args) {
                       set_section_begins(o, args);
                       set_results(o, args, 9);
                       o.d_final = args.data<const float>(12);
                       o.d_before = args.data<Mamba2Data>(20);
                       launch_backward(kernels, o, args, 13, accumulate);
                     });
}

}  // namespace braid
