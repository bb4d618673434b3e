#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/column_sums.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2.cuh"
#include "backends/cuda/kernels/ptx.cuh"

// A thread walks along kConvRows rows of a few channels and keeps the inputs of the last K rows in
// registers, so that each is read once (and K - 1 of them by the thread before, too). Channels of a
// thread are neighbours.
namespace braid {
namespace {

constexpr int kThreads = 128;
constexpr int kForwardChannels = 8;   ///< of a thread
constexpr int kBackwardChannels = 4;  ///< more would not fit the registers
constexpr float kLog2E = 1.4426950408889634f;

__device__ float sigmoid(float x) {
  return 1.0f / (1.0f + ptx::exp2_approx(-x * kLog2E));
}

/// Which rows and channels a thread has.
struct ConvPlace {
  int64_t sequence_begin;
  int begin;  ///< rows of the sequence
  int end;
  int channel;

  __device__ ConvPlace(const Mamba2Sizes& s, int channels) {
    const int tiles = (s.sequence + kConvRows - 1) / kConvRows;
    const int tile = static_cast<int>(blockIdx.y);
    sequence_begin = int64_t{tile / tiles} * s.sequence;
    begin = tile % tiles * kConvRows;
    end = min(begin + kConvRows, s.sequence);
    channel = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * channels;
  }
};

/// Taps and bias of V channels.
template <int V, int K>
struct ConvWeights {
  float taps[K][V];
  float bias[V];

  __device__ ConvWeights(const Mamba2Args& args, int channel) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      bias[v] = widen(args.conv_bias[channel + v]);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        taps[k][v] = widen(args.conv_weight[int64_t{channel + v} * K + k]);
      }
    }
  }
};

/// The inputs of the last K rows; the last one is the current row's.
template <int V, int K>
struct ConvWindow {
  float rows[K][V] = {};

  __device__ void push() {
#pragma unroll
    for (int k = 0; k + 1 < K; ++k) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        rows[k][v] = rows[k + 1][v];
      }
    }
  }
  template <bool kAligned>
  __device__ void push_input(const Mamba2Args& args, const ConvPlace& place, int row) {
    push();
    const Mamba2Sizes& s = args.sizes;
    const Mamba2Data* const from =
        args.zxbcdt + (place.sequence_begin + row) * s.row_elems() + s.inner() + place.channel;
    DeviceVector<Mamba2Data, V> input{};
    if (row >= 0 && row < s.sequence) {
      input = load_vector<V, kAligned>(from, V);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      rows[K - 1][v] = widen(input.elems[v]);
    }
  }
  __device__ float convolved(const ConvWeights<V, K>& weights, int v) const {
    float sum = weights.bias[v];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      sum += weights.taps[k][v] * rows[k][v];
    }
    return sum;
  }
};

template <bool kAligned, int K>
__global__ void __launch_bounds__(kThreads) conv_kernel(const __grid_constant__ Mamba2Args args) {
  constexpr int V = kForwardChannels;
  const Mamba2Sizes& s = args.sizes;
  const ConvPlace place(s, V);
  if (place.channel >= s.convolved()) {
    return;
  }
  const ConvWeights<V, K> weights(args, place.channel);
  ConvWindow<V, K> window;
#pragma unroll
  for (int k = K - 1; k > 0; --k) {
    window.template push_input<kAligned>(args, place, place.begin - k);
  }
#pragma unroll 4
  for (int row = place.begin; row < place.end; ++row) {
    window.template push_input<kAligned>(args, place, row);
    DeviceVector<Mamba2Data, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float a = window.convolved(weights, v);
      out.elems[v] = narrow<Mamba2Data>(a * sigmoid(a));
    }
    store_vector<true>(args.xbc + (place.sequence_begin + row) * s.convolved() + place.channel, out,
                       V);
  }
}

/// The gradient of V convolved channels of a row after SiLU.
template <int V>
__device__ void load_output_grads(const Mamba2Args& args, int64_t row, int channel,
                                  float (&grads)[V]) {
  const Mamba2Sizes& s = args.sizes;
  if (channel < s.inner()) {
    const auto dx = load_vector<V, true>(args.dx + row * s.inner() + channel, V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      grads[v] = widen(dx.elems[v]);
    }
    return;
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    grads[v] = 0;
  }
  for (int part = 0; part < s.parts(); ++part) {
    const float* const from =
        args.d_factors + (part * s.tokens + row) * (2 * s.factor()) + channel - s.inner();
    const auto addend = load_vector<V, true>(from, V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      grads[v] += addend.elems[v];
    }
  }
}

template <bool kAligned, int K>
__global__ void __launch_bounds__(kThreads)
    conv_backward_kernel(const __grid_constant__ Mamba2Args args) {
  constexpr int V = kBackwardChannels;
  const Mamba2Sizes& s = args.sizes;
  const ConvPlace place(s, V);
  if (place.channel >= s.convolved()) {
    return;
  }
  const ConvWeights<V, K> weights(args, place.channel);
  ConvWindow<V, K> inputs;
  ConvWindow<V, K> grads;  // of the convolved inputs
  float d_taps[K][V] = {};
  float d_bias[V] = {};
#pragma unroll
  for (int k = K - 1; k > 0; --k) {
    inputs.template push_input<kAligned>(args, place, place.begin - k);
  }
  // An input takes part in its own row and K - 1 later ones.
#pragma unroll 2
  for (int row = place.begin; row < place.end + K - 1; ++row) {
    inputs.template push_input<kAligned>(args, place, row);
    grads.push();
    float out[V] = {};
    if (row < s.sequence) {
      load_output_grads(args, place.sequence_begin + row, place.channel, out);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float a = inputs.convolved(weights, v);
      const float share = sigmoid(a);
      const float grad = out[v] * share * (1.0f + a * (1.0f - share));
      grads.rows[K - 1][v] = grad;
      if (row < place.end) {
        d_bias[v] += grad;
#pragma unroll
        for (int k = 0; k < K; ++k) {
          d_taps[k][v] += grad * inputs.rows[k][v];
        }
      }
    }
    const int input = row - (K - 1);
    if (input >= place.begin) {
      DeviceVector<Mamba2Data, V> d_input;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < K; ++k) {
          sum += weights.taps[K - 1 - k][v] * grads.rows[k][v];
        }
        d_input.elems[v] = narrow<Mamba2Data>(sum);
      }
      store_vector<kAligned>(args.d_zxbcdt + (place.sequence_begin + input) * s.row_elems() +
                                 s.inner() + place.channel,
                             d_input, V);
    }
  }
  float* const bias_sums = args.partials + int64_t{blockIdx.y} * s.convolved();
  float* const tap_sums =
      args.partials + int64_t{gridDim.y} * s.convolved() + int64_t{blockIdx.y} * s.convolved() * K;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    bias_sums[place.channel + v] = d_bias[v];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      tap_sums[int64_t{place.channel + v} * K + k] = d_taps[k][v];
    }
  }
}

dim3 conv_grid(const Mamba2Sizes& s, int channels) {
  return {grid_of(ceil_div(s.convolved(), int64_t{channels} * kThreads)),
          static_cast<unsigned>(mamba2_conv_tiles(s.tokens, s.sequence))};
}

/// Calls launch.template operator()<aligned, taps>().
void dispatch_conv(const Mamba2Args& args, const auto& launch) {
  const Mamba2Sizes& s = args.sizes;
  const bool aligned =
      s.row_elems() % 8 == 0 && s.inner() % 8 == 0 && all_aligned(16, {args.zxbcdt, args.d_zxbcdt});
  const auto with_taps = [&]<int K>() {
    if (aligned) {
      launch.template operator()<true, K>();
    } else {
      launch.template operator()<false, K>();
    }
  };
  switch (s.taps) {
    case 2:
      return with_taps.template operator()<2>();
    case 3:
      return with_taps.template operator()<3>();
    default:
      return with_taps.template operator()<4>();
  }
}

}  // namespace

void launch_mamba2_conv(const Mamba2Args& args, cudaStream_t stream) {
  dispatch_conv(args, [&]<bool kAligned, int K>() {
    conv_kernel<kAligned, K>
        <<<conv_grid(args.sizes, kForwardChannels), kThreads, 0, stream>>>(args);
  });
  BRAID_CUDA_CHECK(cudaGetLastError());
}

void launch_mamba2_conv_backward(const Mamba2Args& args, const Mamba2WeightGrads& grads,
                                 cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  dispatch_conv(args, [&]<bool kAligned, int K>() {
    conv_backward_kernel<kAligned, K>
        <<<conv_grid(s, kBackwardChannels), kThreads, 0, stream>>>(args);
  });
  BRAID_CUDA_CHECK(cudaGetLastError());
  const auto tiles = static_cast<int>(mamba2_conv_tiles(s.tokens, s.sequence));
  const auto add = [&](const float* partials, float* sums, int64_t width) {
    launch_column_sums({.partials = partials,
                        .sums = sums,
                        .width = width,
                        .num_partials = tiles,
                        .accumulate = grads.accumulate},
                       {}, stream);
  };
  add(args.partials, grads.conv_bias, s.convolved());
  add(args.partials + int64_t{tiles} * s.convolved(), grads.conv_weight,
      int64_t{s.convolved()} * s.taps);
}

}  // namespace braid
