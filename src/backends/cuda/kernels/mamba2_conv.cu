#include <type_traits>

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

  __device__ ConvPlace(const Mamba2Sizes& s, int first_channel, int block) {
    const int tiles = (s.sequence + kConvRows - 1) / kConvRows;
    const int tile = static_cast<int>(blockIdx.y);
    sequence_begin = int64_t{tile / tiles} * s.sequence;
    begin = tile % tiles * kConvRows;
    end = min(begin + kConvRows, s.sequence);
    channel = first_channel + (block * kThreads + static_cast<int>(threadIdx.x)) * kChannels;
  }
};

/// Taps and bias of V channels.
template <int V, int K>
struct ConvWeights {
  float taps[K][V];
  float bias[V];

  __device__ ConvWeights(const Mamba2Args& args, int channel) {
    const auto run = args.sizes.conv_run(channel);
    const int64_t first = args.sizes.weight_begin(run) + channel - run.begin;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      bias[v] = widen(args.conv_bias[first + v]);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        taps[k][v] = widen(args.conv_weight[(first + v) * K + k]);
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

/// Where a thread's channels of the rows in front of its sequence begin.
template <class T>
__device__ T* rows_before(const Mamba2Sizes& s, T* before, const ConvPlace& place) {
  const int64_t rows = place.sequence_begin / s.sequence * (s.taps - 1);
  return before + rows * s.convolved() + place.channel;
}

/// What is convolved, of a thread's channels and sequence.
class ConvInputs {
 public:
  __device__ ConvInputs(const Mamba2Args& args, const ConvPlace& place)
      : stride_(args.sizes.row_elems()),
        from_(args.zxbcdt + place.sequence_begin * stride_ + args.sizes.inner() + place.channel),
        before_stride_(args.sizes.convolved()),
        before_(args.before == nullptr ? nullptr : rows_before(args.sizes, args.before, place)) {}

  template <bool kAligned>
  __device__ ConvInput load(int row) const {
    return load_vector<kChannels, kAligned>(from_ + row * stride_, kChannels);
  }
  /// The window before row `begin`: 0 where the sequence has not begun and nothing is before it.
  template <bool kAligned, int K>
  __device__ ConvWindow<kChannels, K> window_before(int begin) const {
    ConvWindow<kChannels, K> window;
#pragma unroll
    for (int row = begin - (K - 1); row < begin; ++row) {
      window.push(row >= 0 ? load<kAligned>(row) : load_before<K>(row));
    }
    return window;
  }

 private:
  template <int K>
  __device__ ConvInput load_before(int row) const {
    return before_ == nullptr
               ? ConvInput{}
               : load_vector<kChannels, false>(before_ + (row + K - 1) * before_stride_, kChannels);
  }

  int64_t stride_;
  const Mamba2Data* from_;
  int64_t before_stride_;
  const Mamba2Data* before_;
};

template <bool kAligned, int K>
__global__ void __launch_bounds__(kThreads) conv_kernel(const __grid_constant__ Mamba2Args args) {
  const Mamba2Sizes& s = args.sizes;
  const ConvPlace place(s, 0, static_cast<int>(blockIdx.x));
  if (place.channel >= s.convolved()) {
    return;
  }
  const ConvWeights<kChannels, K> weights(args, place.channel);
  const ConvInputs from(args, place);
  auto window = from.window_before<kAligned, K>(place.begin);
  Mamba2Data* to = args.xbc + (place.sequence_begin + place.begin) * s.convolved() + place.channel;
  for (int begin = place.begin; begin < place.end; begin += kForwardBatch) {
    ConvInput inputs[kForwardBatch];
#pragma unroll
    for (int i = 0; i < kForwardBatch; ++i) {
      inputs[i] = begin + i < place.end ? from.load<kAligned>(begin + i) : ConvInput{};
    }
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
        store_vector<true>(to, out, kChannels);
      }
      to += s.convolved();
    }
  }
}

/// The gradients after SiLU of a thread's channels: of x as `dx` has them, of B and C the sum of
/// what the blocks that shared the heads of a group found.
template <bool kOfFactors>
class OutputGrads {
 public:
  using Elem = std::conditional_t<kOfFactors, float, Mamba2Data>;
  using Row = DeviceVector<Elem, kChannels>;

  __device__ OutputGrads(const Mamba2Args& args, const ConvPlace& place) {
    const Mamba2Sizes& s = args.sizes;
    if constexpr (kOfFactors) {
      stride_ = 2 * s.factor();
      from_ = args.d_factors + place.sequence_begin * stride_ + place.channel - s.inner();
      parts_ = s.parts();
      part_distance_ = s.tokens * stride_;
    } else {
      stride_ = s.inner();
      from_ = args.dx + place.sequence_begin * stride_ + place.channel;
    }
  }
  /// Rows from `begin` on to before `end`; the others are 0. The loads of a part are under way at
  /// once.
  template <int kRows>
  __device__ void load(Row (&rows)[kRows], int begin, int end) const {
    const Elem* from = from_ + begin * stride_;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      rows[i] =
          begin + i < end ? load_vector<kChannels, true>(from + i * stride_, kChannels) : Row{};
    }
    if constexpr (kOfFactors) {
#pragma unroll 1
      for (int part = 1; part < parts_; ++part) {
        from += part_distance_;
        Row addends[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          addends[i] =
              begin + i < end ? load_vector<kChannels, true>(from + i * stride_, kChannels) : Row{};
        }
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int v = 0; v < kChannels; ++v) {
            rows[i].elems[v] += addends[i].elems[v];
          }
        }
      }
    }
  }

 private:
  const Elem* from_;
  int64_t stride_;
  int parts_ = 1;
  int64_t part_distance_ = 0;
};

/// Rows of a batch of the backward, as they were loaded.
template <bool kOfFactors>
struct GradBatch {
  ConvInput inputs[kBackwardBatch];
  typename OutputGrads<kOfFactors>::Row outputs[kBackwardBatch];

  /// Rows from `begin` to before `end`; the others are 0.
  template <bool kAligned>
  __device__ void load(const ConvInputs& from, const OutputGrads<kOfFactors>& grads, int begin,
                       int end) {
#pragma unroll
    for (int i = 0; i < kBackwardBatch; ++i) {
      inputs[i] = begin + i < end ? from.load<kAligned>(begin + i) : ConvInput{};
    }
    grads.load(outputs, begin, end);
  }
};

/// Sums over a thread's rows.
template <int K>
struct ConvSums {
  float taps[K][kChannels] = {};
  float bias[kChannels] = {};
};

/// Moves on by one row, whose gradient after SiLU is `out`: the gradient before SiLU enters
/// `grads`, and `sums` where `counts`.
template <int K, class Elem>
__device__ void push_grads(ConvWindow<kChannels, K>& grads, ConvSums<K>& sums,
                           const ConvWindow<kChannels, K>& inputs,
                           const ConvWeights<kChannels, K>& weights,
                           const DeviceVector<Elem, kChannels>& out, bool counts) {
  grads.push();
#pragma unroll
  for (int v = 0; v < kChannels; ++v) {
    const float a = inputs.convolved(weights, v);
    const float share = sigmoid(a);
    const float grad = widen(out.elems[v]) * share * (1.0f + a * (1.0f - share));
    grads.rows[K - 1][v] = grad;
    const float counted = counts ? grad : 0.0f;
    sums.bias[v] += counted;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      sums.taps[k][v] += counted * inputs.rows[k][v];
    }
  }
}

/// Of the channels of x, or of those of B and C.
template <bool kOfFactors, bool kAligned, int K>
__device__ void conv_backward(const Mamba2Args& args, const ConvPlace& place) {
  const Mamba2Sizes& s = args.sizes;
  if (place.channel >= (kOfFactors ? s.convolved() : s.inner())) {
    return;
  }
  const ConvWeights<kChannels, K> weights(args, place.channel);
  const ConvInputs from(args, place);
  const OutputGrads<kOfFactors> output_grads(args, place);
  auto inputs = from.window_before<kAligned, K>(place.begin);
  ConvWindow<kChannels, K> grads;  // of the convolved inputs
  ConvSums<K> sums;
  // An input takes part in its own row and K - 1 later ones.
  const int end = min(place.end + K - 1, s.sequence);
  GradBatch<kOfFactors> next;
  next.template load<kAligned>(from, output_grads, place.begin, end);
  Mamba2Data* to = args.d_zxbcdt + (place.sequence_begin + place.begin - (K - 1)) * s.row_elems() +
                   s.inner() + place.channel;
  for (int begin = place.begin; begin < place.end + K - 1; begin += kBackwardBatch) {
    const GradBatch<kOfFactors> rows = next;
    next.template load<kAligned>(from, output_grads, begin + kBackwardBatch, end);
#pragma unroll
    for (int i = 0; i < kBackwardBatch; ++i) {
      inputs.push(rows.inputs[i]);
      push_grads(grads, sums, inputs, weights, rows.outputs[i], begin + i < place.end);
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
        store_vector<kAligned>(to, d_input, kChannels);
      } else if (input < 0 && args.d_before != nullptr) {
        store_vector<false>(rows_before(s, args.d_before, place) + (input + K - 1) * s.convolved(),
                            d_input, kChannels);
      }
      to += s.row_elems();
    }
  }
  // Partial sums are [tiles, channels] run by run, first of the biases, then of the taps.
  const auto run = s.conv_run(place.channel);
  const int64_t first =
      int64_t{gridDim.y} * run.begin + int64_t{blockIdx.y} * run.size + (place.channel - run.begin);
  float* const bias_sums = args.partials + first;
  float* const tap_sums = args.partials + int64_t{gridDim.y} * s.convolved() + first * K;
#pragma unroll
  for (int v = 0; v < kChannels; ++v) {
    bias_sums[v] = sums.bias[v];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      tap_sums[v * K + k] = sums.taps[k][v];
    }
  }
}

/// The first blocks of a row have the channels of B and C, as they take longer.
template <bool kAligned, int K>
__global__ void __launch_bounds__(kThreads, 4)
    conv_backward_kernel(const __grid_constant__ Mamba2Args args, int factor_blocks) {
  const int block = static_cast<int>(blockIdx.x);
  if (block < factor_blocks) {
    conv_backward<true, kAligned, K>(args, ConvPlace(args.sizes, args.sizes.inner(), block));
  } else {
    conv_backward<false, kAligned, K>(args, ConvPlace(args.sizes, 0, block - factor_blocks));
  }
}

/// Blocks for so many channels.
int conv_blocks(int channels) {
  return static_cast<int>(ceil_div(channels, int64_t{kChannels} * kThreads));
}

dim3 conv_grid(const Mamba2Sizes& s, int blocks) {
  return {static_cast<unsigned>(blocks),
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
    const dim3 grid = conv_grid(args.sizes, conv_blocks(args.sizes.convolved()));
    conv_kernel<kAligned, K><<<grid, kThreads, 0, stream>>>(args);
  });
  BRAID_CUDA_CHECK(cudaGetLastError());
}

void launch_mamba2_conv_backward(const Mamba2Args& args, const Mamba2WeightGrads& grads,
                                 cudaStream_t stream) {
  const Mamba2Sizes& s = args.sizes;
  dispatch_conv(args, [&]<bool kAligned, int K>() {
    const int factors = conv_blocks(2 * s.factor());
    conv_backward_kernel<kAligned, K>
        <<<conv_grid(s, factors + conv_blocks(s.inner())), kThreads, 0, stream>>>(args, factors);
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
  const float* const tap_partials = args.partials + int64_t{tiles} * s.convolved();
  for (int channel = 0; channel < s.convolved();) {
    const auto run = s.conv_run(channel);
    const int64_t before = int64_t{tiles} * run.begin;
    const int64_t row = s.weight_begin(run);
    add(args.partials + before, grads.conv_bias + row, run.size);
    add(tap_partials + before * s.taps, grads.conv_weight + row * s.taps,
        int64_t{run.size} * s.taps);
    channel = run.begin + run.size;
  }
}

}  // namespace braid
