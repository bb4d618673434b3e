#include "ops/rope.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/rope_angles.cuh"
#include "ops/attributes.h"

// One block per token with all its heads. The R/2 angles are computed once per token, in shared
// memory, while the first loads are in flight, so no table is read or stored. R is D, or less where
// only the first elements of a head are rotated.
namespace braid {
namespace {

template <class T>
struct RopeArgs {
  const T* qkv = nullptr;           // [N, heads * D]
  T* out = nullptr;                 // [N, heads * D]
  const int32_t* starts = nullptr;  // [N], of documents, or null
  int64_t sequence = 0;
  TokenPositions positions;
  int heads = 0;    // of a row, including value heads
  int rotated = 0;  // the first ones of them
  int pairs = 0;    // R/2
  int half = 0;     // D/2
};

/// Where the two vectors of an item begin in its head: the elements c..c+V of pairs and those R/2
/// behind them; of elements that are not rotated, two vectors one behind the other.
struct ItemPlace {
  int first;
  int second;
};

template <int V>
__device__ ItemPlace place_of(int c, int pairs) {
  return c < pairs ? ItemPlace{c, pairs + c} : ItemPlace{2 * c, 2 * c + V};
}

/// One item of a token: 2 V elements of one head.
template <class T, int V>
struct PairVectors {
  DeviceVector<T, V> first;
  DeviceVector<T, V> second;
};

template <class T, int V>
__device__ PairVectors<T, V> load_pairs(const T* head, ItemPlace at) {
  return {load_vector<V, (V > 1)>(head + at.first, V),
          load_vector<V, (V > 1)>(head + at.second, V)};
}

template <class T, int V>
__device__ void rotate(PairVectors<T, V>& item, const float2* cos_sin) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float2 angle = cos_sin[i];
    const float x = widen(item.first.elems[i]);
    const float y = widen(item.second.elems[i]);
    item.first.elems[i] = narrow<T>(x * angle.x - y * angle.y);
    item.second.elems[i] = narrow<T>(y * angle.x + x * angle.y);
  }
}

template <int V, int kUnroll, class T>
__global__ void __launch_bounds__(512)
    rope_kernel(RopeArgs<T> args, const __grid_constant__ HalfTurns half_turns) {
  __shared__ float2 cos_sin[kMaxPairs];
  const int items_per_head = args.half / V;
  const int items = args.heads * items_per_head;
  const int64_t row = blockIdx.x;
  const int64_t at_row = row * 2 * args.heads * args.half;
  const int threads = static_cast<int>(blockDim.x);
  const double position = row_position(args.positions, args.sequence, args.starts, row);

  for (int begin = static_cast<int>(threadIdx.x); begin < items + static_cast<int>(threadIdx.x);
       begin += kUnroll * threads) {
    PairVectors<T, V> item[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = begin + u * threads;
      if (at < items) {
        const int head = at / items_per_head;
        const int c = (at - head * items_per_head) * V;
        item[u] =
            load_pairs<T, V>(args.qkv + at_row + head * 2 * args.half, place_of<V>(c, args.pairs));
      }
    }
    if (begin == static_cast<int>(threadIdx.x)) {
      for (int i = begin; i < args.pairs; i += threads) {
        cos_sin[i] = angle_of(half_turns, position, i);
      }
      __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = begin + u * threads;
      if (at < items) {
        const int head = at / items_per_head;
        const int c = (at - head * items_per_head) * V;
        if (head < args.rotated && c < args.pairs) {
          rotate(item[u], cos_sin + c);
        }
        const ItemPlace place = place_of<V>(c, args.pairs);
        T* const to = args.out + at_row + head * 2 * args.half;
        store_vector<(V > 1)>(to + place.first, item[u].first, V);
        store_vector<(V > 1)>(to + place.second, item[u].second, V);
      }
    }
  }
}

template <int V, class T>
void launch_rope(const RopeArgs<T>& args, const HalfTurns& turns, int64_t rows,
                 cudaStream_t stream) {
  constexpr int kUnroll = 2;
  const int64_t items = int64_t{args.heads} * args.half / V;
  const auto threads =
      static_cast<unsigned>(std::min<int64_t>(512, ceil_div(items, kUnroll * 32) * 32));
  rope_kernel<V, kUnroll><<<grid_of(rows), threads, 0, stream>>>(args, turns);
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_rope(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<RopeAttributes>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  check(attributes.rotated() <= 2 * kMaxPairs,
        "op rope: {} rotated elements of a head; its kernel takes up to {}", attributes.rotated(),
        2 * kMaxPairs);
  const HalfTurns turns = half_turns_of({.rotated = attributes.rotated(),
                                         .theta = attributes.theta,
                                         .scaling = attributes.scaling,
                                         .inverse = attributes.inverse});
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() -> CudaKernel {
    const bool documents = attributes.documents.documents;
    RopeArgs<T> shape;
    shape.sequence = attributes.sequence;
    shape.positions = attributes.positions;
    shape.rotated = static_cast<int>(attributes.heads + attributes.kv_heads);
    shape.heads = static_cast<int>(attributes.heads + 2 * attributes.kv_heads);
    shape.pairs = static_cast<int>(attributes.rotated() / 2);
    shape.half = static_cast<int>(attributes.head_size / 2);
    return {.launch = [=](const CudaKernelArgs& args) {
      RopeArgs<T> o = shape;
      o.qkv = args.data<const T>(0);
      o.starts = documents ? args.data<const int32_t>(1) : nullptr;
      o.out = args.data<T>(documents ? 2 : 1);
      if (o.pairs % kVectorElems<T> == 0 && o.half % kVectorElems<T> == 0 &&
          all_aligned(16, {o.qkv, o.out})) {
        launch_rope<kVectorElems<T>>(o, turns, rows, args.stream);
      } else {
        launch_rope<1>(o, turns, rows, args.stream);
      }
    }};
  });
}

}  // namespace braid
