#include "ops/cached_mamba2.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/cached_mamba2_scratch.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"

// Four kernels, each of which needs all of the one before it: the convolution, the window of the
// next run, the states row by row, and the gated norm. In the third, a block has one head of one
// sequence and a warp every kWarps-th element of the head, whose part of the state is in device
// memory and is read and written once per row: made for one row per sequence.
namespace braid {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;

struct StepSizes {
  int64_t rows = 0;  // of a sequence
  int64_t sequences = 0;
  int64_t taps = 0;
  int64_t convolved = 0;
  int64_t inner = 0;
  int64_t row_elems = 0;
  int64_t dt_begin = 0;
  int heads = 0;
  int head_size = 0;
  int groups = 0;
  int state = 0;
  int norm_groups = 0;
  float dt_min = 0;
  float dt_max = 0;
  float epsilon = 0;

  StepSizes(const OpSpec& spec, const Mamba2Attributes& a)
      : rows(a.sequence),
        sequences(spec.operands[0].shape[0] / a.sequence),
        taps(spec.operands[1].shape[1]),
        convolved(a.convolved()),
        inner(a.inner()),
        row_elems(a.row_elems()),
        dt_begin(a.dt_begin()),
        heads(static_cast<int>(a.heads)),
        head_size(static_cast<int>(a.head_size)),
        groups(static_cast<int>(a.groups)),
        state(static_cast<int>(a.state)),
        norm_groups(static_cast<int>(a.norm_groups)),
        dt_min(static_cast<float>(a.dt_min)),
        dt_max(static_cast<float>(a.dt_max)),
        epsilon(static_cast<float>(a.epsilon)) {}
};

template <class T>
struct StepArgs {
  StepSizes sizes;
  const T* zxbcdt;       // [sequences * rows, row_elems]
  const T* conv_weight;  // [convolved, taps]
  const T* conv_bias;
  const T* dt_bias;
  const T* a_log;
  const T* skip;
  const T* norm_weight;
  const int32_t* begins;  // [sequences]
  const int32_t* counts;  // [sequences]
  T* window;              // [sequences, taps, convolved]
  float* states;          // [sequences, heads, head_size, state]
  T* v;                   // [sequences * rows, inner]
  float* xbc;             // [sequences * rows, convolved]
  T* y;                   // [sequences * rows, inner]
};

__device__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

/// Channel c before the convolution of the token `index` of this run's rows, or before them, if
/// negative; 0 before the sequence began.
template <class T>
__device__ T convolved_input(const StepArgs<T>& args, int64_t sequence, int64_t index, int64_t c) {
  const StepSizes& s = args.sizes;
  if (index >= 0) {
    return args.zxbcdt[(sequence * s.rows + index) * s.row_elems + s.inner + c];
  }
  return args.begins[sequence] + index < 0
             ? T(0.0f)
             : args.window[(sequence * s.taps + s.taps + index) * s.convolved + c];
}

/// Grid: rows, pieces of the channels.
template <class T>
__global__ void __launch_bounds__(kThreads)
    convolve_kernel(const __grid_constant__ StepArgs<T> args) {
  const StepSizes& s = args.sizes;
  const int64_t row = blockIdx.x;
  const int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (c >= s.convolved) {
    return;
  }
  float sum = widen(args.conv_bias[c]);
  for (int64_t tap = 0; tap < s.taps; ++tap) {
    const T in = convolved_input(args, row / s.rows, row % s.rows + tap - s.taps + 1, c);
    sum += widen(args.conv_weight[c * s.taps + tap]) * widen(in);
  }
  args.xbc[row * s.convolved + c] = sum * sigmoid(sum);
}

/// Grid: sequences, pieces of the channels. Ascending places read only later ones.
template <class T>
__global__ void __launch_bounds__(kThreads)
    window_kernel(const __grid_constant__ StepArgs<T> args) {
  const StepSizes& s = args.sizes;
  const int64_t sequence = blockIdx.x;
  const int64_t c = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t count = args.counts[sequence];
  if (c >= s.convolved || count == 0) {
    return;
  }
  for (int64_t i = 0; i < s.taps; ++i) {
    args.window[(sequence * s.taps + i) * s.convolved + c] =
        convolved_input(args, sequence, count - s.taps + i, c);
  }
}

/// Grid: heads, sequences.
template <class T>
__global__ void __launch_bounds__(kThreads)
    states_kernel(const __grid_constant__ StepArgs<T> args) {
  const StepSizes& s = args.sizes;
  const auto head = static_cast<int>(blockIdx.x);
  const int64_t sequence = blockIdx.y;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  float* const states = args.states + (sequence * s.heads + head) * s.head_size * s.state;
  const int64_t group = int64_t{head} * s.groups / s.heads;
  const float dt_bias = widen(args.dt_bias[head]);
  const float a = -expf(widen(args.a_log[head]));
  const float skip = widen(args.skip[head]);
  bool is_first = args.begins[sequence] == 0;
  for (int64_t index = 0; index < args.counts[sequence]; ++index) {
    const int64_t row = sequence * s.rows + index;
    const float u = widen(args.zxbcdt[row * s.row_elems + s.dt_begin + head]) + dt_bias;
    float dt = u > 20.0f ? u : log1pf(expf(u));
    dt = dt < s.dt_min ? s.dt_min : dt > s.dt_max ? s.dt_max : dt;  // keeps a NaN
    const float decay = expf(dt * a);
    const float* const x = args.xbc + row * s.convolved + int64_t{head} * s.head_size;
    const float* const b = args.xbc + row * s.convolved + s.inner + group * s.state;
    const float* const c = b + int64_t{s.groups} * s.state;
    for (int p = warp; p < s.head_size; p += kWarps) {
      float* const state = states + int64_t{p} * s.state;
      float sum = 0;
      for (int i = lane; i < s.state; i += kWarpSize) {
        const float next = (is_first ? 0.0f : decay * state[i]) + dt * x[p] * b[i];
        state[i] = next;
        sum += next * c[i];
      }
      sum = warp_sum(sum);
      if (lane == 0) {
        args.y[row * s.inner + int64_t{head} * s.head_size + p] = narrow<T>(sum + skip * x[p]);
      }
    }
    is_first = false;
  }
}

/// Grid: rows, groups of the norm.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gated_norm_kernel(const __grid_constant__ StepArgs<T> args) {
  __shared__ float shared[kWarpSize];
  const StepSizes& s = args.sizes;
  const int64_t row = blockIdx.x;
  const int64_t width = s.inner / s.norm_groups;
  const int64_t begin = int64_t{blockIdx.y} * width;
  T* const v = args.v + row * s.inner + begin;
  if (row % s.rows >= args.counts[row / s.rows]) {
    for (int64_t c = threadIdx.x; c < width; c += kThreads) {
      v[c] = narrow<T>(0.0f);
    }
    return;
  }
  const T* const y = args.y + row * s.inner + begin;
  const T* const z = args.zxbcdt + row * s.row_elems + begin;
  const auto gated = [&](int64_t c) {
    const float gate = widen(z[c]);
    return widen(y[c]) * gate * sigmoid(gate);
  };
  float squares = 0;
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    squares += gated(c) * gated(c);
  }
  const float mean = block_sum(squares, shared) / static_cast<float>(width);
  const float rstd = 1.0f / sqrtf(mean + s.epsilon);
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    v[c] = narrow<T>(gated(c) * rstd * widen(args.norm_weight[begin + c]));
  }
}

template <class T>
void launch(const StepArgs<T>& args, cudaStream_t stream) {
  const StepSizes& s = args.sizes;
  const unsigned rows = grid_of(s.sequences * s.rows);
  const auto sequences = static_cast<unsigned>(s.sequences);
  const auto channels = static_cast<unsigned>(ceil_div(s.convolved, kThreads));
  convolve_kernel<<<dim3(rows, channels), kThreads, 0, stream>>>(args);
  window_kernel<<<dim3(sequences, channels), kThreads, 0, stream>>>(args);
  states_kernel<<<dim3(static_cast<unsigned>(s.heads), sequences), kThreads, 0, stream>>>(args);
  gated_norm_kernel<<<dim3(rows, static_cast<unsigned>(s.norm_groups)), kThreads, 0, stream>>>(
      args);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_cached_mamba2(const OpSpec& spec, CudaContext& /*context*/) {
  const auto a = attributes_of<Mamba2Attributes>(spec);
  const StepSizes sizes(spec, a);
  const CachedMamba2Scratch scratch(spec, a);
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    return {.launch =
                [sizes, scratch](const CudaKernelArgs& args) {
                  launch(StepArgs<T>{.sizes = sizes,
                                     .zxbcdt = args.data<const T>(0),
                                     .conv_weight = args.data<const T>(1),
                                     .conv_bias = args.data<const T>(2),
                                     .dt_bias = args.data<const T>(3),
                                     .a_log = args.data<const T>(4),
                                     .skip = args.data<const T>(5),
                                     .norm_weight = args.data<const T>(6),
                                     .begins = args.data<const int32_t>(7),
                                     .counts = args.data<const int32_t>(8),
                                     .window = args.data<T>(9),
                                     .states = args.data<float>(10),
                                     .v = args.data<T>(11),
                                     .xbc = reinterpret_cast<float*>(args.scratch + scratch.xbc),
                                     .y = reinterpret_cast<T*>(args.scratch + scratch.y)},
                         args.stream);
                },
            .scratch_bytes = scratch.bytes};
  });
}

}  // namespace braid
