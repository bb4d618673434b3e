#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/column_sums.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/mamba2.cuh"

// A thread walks along kConvRows rows of a few channels and keeps the inputs of the last K rows in
// registers, so that each is read once (and K - 1 of them by the thread before, too). Channels of a
// thread are neighbours.
namespace braid {
namespace {

constexpr int kThreads = 128;
constexpr int kChannels = 4;      ///< of a thread
constexpr int kForwardBatch = 8;  ///< rows whose loads are under way at once
constexpr int kBackwardBatch = 4;

/// Which rows and channels a thread has.
struct ConvPlace {
  int64_t sequence_begin;
  int begin;  ///< rows of the sequence
  int end;
  int channel;

  __device__ explicit ConvPlace(const Mamba2Sizes& s) {
    const int tiles = (s.sequence + kConvRows - 1) / kConvRows;
    const int tile = static_cast<int>(blockIdx.y);
    sequence_begin = int64_t{tile / tiles} * s.sequence;
    begin = tile % tiles * kConvRows;
    end = min(begin + kConvRows, s.sequence);
    channel = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * kChannels;
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
  __device__ void push(const DeviceVector<Mamba2Data, V>& input) {
    push();
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

using ConvInput = DeviceVector<Mamba2Data, kChannels>;

/// The inputs of `count` rows from `begin` on; 0 outside of the sequence.
template <bool kAligned, int kCount>
__device__ void load_inputs(const Mamba2Args& args, const ConvPlace& place, int begin,
                            ConvInput (&inputs)[kCount]) {
  const Mamba2Sizes& s = args.sizes;
  const Mamba2Data* const from =
      args.zxbcdt + place.sequence_begin * s.row_elems() + s.inner() + place.channel;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int row = begin + i;
    inputs[i] = ConvInput{};
    if (row >= 0 && row < s.sequence) {
      inputs[i] = load_vector<kChannels, kAligned>(from + int64_t{row} * s.row_elems(), kChannels);
    }
  }
}

/// The window before row `begin`.
template <bool kAligned, int K>
__device__ ConvWindow<kChannels, K> window_before(const Mamba2Args& args, const ConvPlace& place,
                                                  int begin) {
  ConvInput inputs[K - 1];
  load_inputs<kAligned>(args, place, begin - (K - 1), inputs);
  ConvWindow<kChannels, K> window;
#pragma unroll
  for (int k = 0; k + 1 < K; ++k) {
    window.push(inputs[k]);
  }
  return window;
}

template <bool kAligned, int K>
__global__ void __launch_bounds__(kThreads) conv_kernel(const __grid_constant__ Mamba2Args args) {
  const Mamba2Sizes& s = args.sizes;
  const ConvPlace place(s);
  if (place.channel >= s.convolved()) {
    return;
  }
  const ConvWeights<kChannels, K> weights(args, place.channel);
  auto window = window_before<kAligned, K>(args, place, place.begin);
  for (int begin = place.begin; begin < place.end; begin += kForwardBatch) {
    ConvInput inputs[kForwardBatch];
    load_inputs<kAligned>(args, place, begin, inputs);
#pragma unroll
    for (int i = 0; i < kForwardBatch; ++i) {
      window.push(inputs[i]);
      ConvInput out;
#pragma unroll
      for (int v = 0; v < kChannels; ++v) {
        const float a = window.convolved(weights, v);
        out.elems[v] = narrow<Mamba2Data>(a * sigmoid(a));
      }
      if (begin + i < place.end) {
        store_vector<true>(
            args.xbc + (place.sequence_begin + begin + i) * s.convolved() + place.channel, out,
            kChannels);
      }
    }
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

/// Sums over a thread's rows.
template <int K>
struct ConvSums {
  float taps[K][kChannels] = {};
  float bias[kChannels] = {};
};

/// Moves on by one row, whose gradient after SiLU is `out`: the gradient before SiLU enters
/// `grads`, and `sums` where `counts`.
template <int K>
__device__ void push_grads(ConvWindow<kChannels, K>& grads, ConvSums<K>& sums,
                           const ConvWindow<kChannels, K>& inputs,
                           const ConvWeights<kChannels, K>& weights, const float (&out)[kChannels],
                           bool counts) {
  grads.push();
#pragma unroll
  for (int v = 0; v < kChannels; ++v) {
    const float a = inputs.convolved(weights, v);
    const float share = sigmoid(a);
    const float grad = out[v] * share * (1.0f + a * (1.0f - share));
    grads.rows[K - 1][v] = grad;
    const float counted = counts ? grad : 0.0f;
    sums.bias[v] += counted;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      sums.taps[k][v] += counted * inputs.rows[k][v];
    }
  }
}

template <bool kAligned, int K>
__global__ void __launch_bounds__(kThreads)
    conv_backward_kernel(const __grid_constant__ Mamba2Args args) {
  const Mamba2Sizes& s = args.sizes;
  const ConvPlace place(s);
  if (place.channel >= s.convolved()) {
    return;
  }
  const ConvWeights<kChannels, K> weights(args, place.channel);
  auto inputs = window_before<kAligned, K>(args, place, place.begin);
  ConvWindow<kChannels, K> grads;  // of the convolved inputs
  ConvSums<K> sums;
  // An input takes part in its own row and K - 1 later ones.
  for (int begin = place.begin; begin < place.end + K - 1; begin += kBackwardBatch) {
    ConvInput more[kBackwardBatch];
    float out[kBackwardBatch][kChannels] = {};
    load_inputs<kAligned>(args, place, begin, more);
#pragma unroll
    for (int i = 0; i < kBackwardBatch; ++i) {
      if (begin + i < s.sequence) {
        load_output_grads(args, place.sequence_begin + begin + i, place.channel, out[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kBackwardBatch; ++i) {
      inputs.push(more[i]);
      push_grads(grads, sums, inputs, weights, out[i], begin + i < place.end);
      const int input = begin + i - (K - 1);
      ConvInput d_input;
#pragma unroll
      for (int v = 0; v < kChannels; ++v) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < K; ++k) {
          sum += weights.taps[K - 1 - k][v] * grads.rows[k][v];
        }
        d_input.elems[v] = narrow<Mamba2Data>(sum);
      }
      if (input >= place.begin && input < place.end) {
        store_vector<kAligned>(args.d_zxbcdt + (place.sequence_begin + input) * s.row_elems() +
                                   s.inner() + place.channel,
                               d_input, kChannels);
      }
    }
  }
  float* const bias_sums = args.partials + int64_t{blockIdx.y} * s.convolved();
  float* const tap_sums =
      args.partials + int64_t{gridDim.y} * s.convolved() + int64_t{blockIdx.y} * s.convolved() * K;
#pragma unroll
  for (int v = 0; v < kChannels; ++v) {
    bias_sums[place.channel + v] = sums.bias[v];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      tap_sums[int64_t{place.channel + v} * K + k] = sums.taps[k][v];
    }
  }
}

dim3 conv_grid(const Mamba2Sizes& s) {
  return {grid_of(ceil_div(s.convolved(), int64_t{kChannels} * kThreads)),
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
    conv_kernel<kAligned, K><<<conv_grid(args.sizes), kThreads, 0, stream>>>(args);
  });
  BRAID_CUDA_CHECK(cudaGetLastError());
}

void launch_mamba2_conv_backward(const Mamba2Args& args, const Mamba2WeightGrads& grads,
                                 cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  dispatch_conv(args, [&]<bool kAligned, int K>() {
    conv_backward_kernel<kAligned, K><<<conv_grid(s), kThreads, 0, stream>>>(args);
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
