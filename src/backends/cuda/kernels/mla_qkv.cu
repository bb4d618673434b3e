#include "ops/mla_qkv.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/rope_angles.cuh"
#include "ops/attributes.h"

// A block has the angles of a few tokens in shared memory. Each of its threads takes the same place
// in the rows of all these tokens: what is there is found out once, and that many loads are in
// flight. Places are vectors of 16 bytes if all sizes are multiples of that, else single elements.
namespace braid {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = 4;  // of a block

template <class T>
struct MlaArgs {
  T* q = nullptr;                   // [N, heads * (plain + rotated)]
  T* kv = nullptr;                  // [N, heads * (plain + value)]
  T* k_rope = nullptr;              // [N, rotated]
  T* qkv = nullptr;                 // [N, 3 * heads * head_size]
  const int32_t* starts = nullptr;  // [N], of documents, or null
  int64_t rows = 0;                 // N
  int64_t sequence = 0;
  TokenPositions positions;
  int heads = 0;
  int plain = 0;
  int rotated = 0;
  int value = 0;
  int head_size = 0;

  __device__ int64_t row_of_q() const { return int64_t{heads} * (plain + rotated); }
  __device__ int64_t row_of_kv() const { return int64_t{heads} * (plain + value); }
  __device__ int64_t row_of_heads() const { return int64_t{heads} * head_size; }
};

template <class T>
__device__ void fill_angles(const MlaArgs<T>& args, const HalfTurns& turns,
                            float2 (&angles)[kTokens][kMaxPairs]) {
  const int pairs = args.rotated / 2;
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * pairs; i += kThreads) {
    const int token = i / pairs;
    const int64_t row = int64_t{blockIdx.x} * kTokens + token;
    if (row < args.rows) {
      const double position = row_position(args.positions, args.sequence, args.starts, row);
      angles[token][i - token * pairs] = angle_of(turns, position, i - token * pairs);
    }
  }
  __syncthreads();
}

/// A place in the rows of a result, and where its elements come from.
template <class T>
struct Place {
  const T* from = nullptr;  // in row 0; null: zeros
  int64_t from_row = 0;     // elements of a row
  T* to = nullptr;
  int64_t to_row = 0;
  int rotated_at = -1;  // first element's number in the rotated part, or negative outside of it
};

/// Elements [rotated_at, rotated_at + kElems) of a rotated part that begins with `own`. `partner`:
/// what a single element is rotated with.
template <class T, int kElems>
__device__ DeviceVector<T, kElems> rotate(const DeviceVector<T, kElems>& own, T partner,
                                          int rotated_at, const float2* angles) {
  DeviceVector<T, kElems> result;
#pragma unroll
  for (int e = 0; e < kElems; ++e) {
    const int i = rotated_at + e;
    const float2 angle = angles[i / 2];
    const float other = widen(kElems == 1 ? partner : own.elems[(e ^ 1) % kElems]);
    result.elems[e] =
        narrow<T>(widen(own.elems[e]) * angle.x + (i % 2 == 0 ? -other : other) * angle.y);
  }
  return result;
}

/// Writes the place in the rows of the block's tokens.
template <int kElems, class T>
__device__ void write_place(const Place<T>& place, int64_t rows,
                            const float2 (&angles)[kTokens][kMaxPairs]) {
  constexpr bool kAligned = kElems > 1;
  const int64_t first = int64_t{blockIdx.x} * kTokens;
  DeviceVector<T, kElems> elems[kTokens] = {};
  T partners[kTokens] = {};
#pragma unroll
  for (int token = 0; token < kTokens; ++token) {
    if (place.from != nullptr && first + token < rows) {
      const T* const from = place.from + (first + token) * place.from_row;
      elems[token] = load_vector<kElems, kAligned>(from, kElems);
      if (kElems == 1 && place.rotated_at >= 0) {
        partners[token] = from[place.rotated_at % 2 == 0 ? 1 : -1];
      }
    }
  }
#pragma unroll
  for (int token = 0; token < kTokens; ++token) {
    if (first + token < rows) {
      if (place.rotated_at >= 0) {
        elems[token] = rotate(elems[token], partners[token], place.rotated_at, angles[token]);
      }
      store_vector<kAligned>(place.to + (first + token) * place.to_row, elems[token], kElems);
    }
  }
}

/// Element `i` of a row of qkv.
template <class T>
__device__ Place<T> place_in_qkv(const MlaArgs<T>& args, int i) {
  const int width = static_cast<int>(args.row_of_heads());
  const int part = i / width;  // queries, keys, values
  const int head = (i - part * width) / args.head_size;
  const int at = i - part * width - head * args.head_size;
  Place<T> place{.to = args.qkv + i, .to_row = int64_t{3} * width};
  const T* const kv = args.kv + int64_t{head} * (args.plain + args.value);
  if (part == 2) {
    place.from = at < args.value ? kv + args.plain + at : nullptr;
    place.from_row = args.row_of_kv();
  } else if (at < args.plain + args.rotated) {
    const bool is_rotated = at >= args.plain;
    place.rotated_at = is_rotated ? at - args.plain : -1;
    if (part == 0) {
      place.from = args.q + int64_t{head} * (args.plain + args.rotated) + at;
      place.from_row = args.row_of_q();
    } else {
      place.from = is_rotated ? args.k_rope + place.rotated_at : kv + at;
      place.from_row = is_rotated ? args.rotated : args.row_of_kv();
    }
  }
  return place;
}

template <int kElems, class T>
__global__ void __launch_bounds__(kThreads)
    mla_qkv_kernel(MlaArgs<T> args, const __grid_constant__ HalfTurns turns) {
  __shared__ float2 angles[kTokens][kMaxPairs];
  fill_angles(args, turns, angles);
  const int row = static_cast<int>(3 * args.row_of_heads());
  for (int i = static_cast<int>(threadIdx.x) * kElems; i < row; i += kThreads * kElems) {
    write_place<kElems>(place_in_qkv(args, i), args.rows, angles);
  }
}

/// Element `i` of a row of d_q.
template <class T>
__device__ Place<T> place_in_q(const MlaArgs<T>& args, int i) {
  const int score = args.plain + args.rotated;
  const int head = i / score;
  const int at = i - head * score;
  return {.from = args.qkv + int64_t{head} * args.head_size + at,
          .from_row = 3 * args.row_of_heads(),
          .to = args.q + i,
          .to_row = args.row_of_q(),
          .rotated_at = at - args.plain};
}

/// Element `i` of a row of d_kv.
template <class T>
__device__ Place<T> place_in_kv(const MlaArgs<T>& args, int i) {
  const int kv_size = args.plain + args.value;
  const int head = i / kv_size;
  const int at = i - head * kv_size;
  const bool is_value = at >= args.plain;
  const int64_t part = (is_value ? 2 : 1) * args.row_of_heads();
  return {
      .from = args.qkv + part + int64_t{head} * args.head_size + at - (is_value ? args.plain : 0),
      .from_row = 3 * args.row_of_heads(),
      .to = args.kv + i,
      .to_row = args.row_of_kv()};
}

/// The sums over heads of the rotated parts of keys, rotated back.
template <class T>
__device__ void sum_rotated(const MlaArgs<T>& args, const float2 (&angles)[kTokens][kMaxPairs]) {
  const int pairs = args.rotated / 2;
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * pairs; i += kThreads) {
    const int token = i / pairs;
    const int pair = i - token * pairs;
    const int64_t row = int64_t{blockIdx.x} * kTokens + token;
    if (row >= args.rows) {
      return;
    }
    const T* const keys = args.qkv + (3 * row + 1) * args.row_of_heads() + args.plain + 2 * pair;
    float x = 0;
    float y = 0;
#pragma unroll 8
    for (int head = 0; head < args.heads; ++head) {
      x += widen(keys[head * args.head_size]);
      y += widen(keys[head * args.head_size + 1]);
    }
    const float2 angle = angles[token][pair];
    T* const d_rope = args.k_rope + row * args.rotated + 2 * pair;
    d_rope[0] = narrow<T>(x * angle.x - y * angle.y);
    d_rope[1] = narrow<T>(y * angle.x + x * angle.y);
  }
}

template <int kElems, class T>
__global__ void __launch_bounds__(kThreads)
    mla_qkv_backward_kernel(MlaArgs<T> args, const __grid_constant__ HalfTurns turns) {
  __shared__ float2 angles[kTokens][kMaxPairs];
  fill_angles(args, turns, angles);
  const int first = static_cast<int>(threadIdx.x) * kElems;
  for (int i = first; i < args.row_of_q(); i += kThreads * kElems) {
    write_place<kElems>(place_in_q(args, i), args.rows, angles);
  }
  for (int i = first; i < args.row_of_kv(); i += kThreads * kElems) {
    write_place<kElems>(place_in_kv(args, i), args.rows, angles);
  }
  sum_rotated(args, angles);
}

/// Operands: q or its gradient, in front of the others; starts of documents, if it has them; qkv.
struct MlaOperandNumbers {
  size_t q;
  size_t starts;
  size_t qkv;
};

template <class T>
MlaArgs<T> args_of(const MlaAttributes& a, int64_t rows, const CudaKernelArgs& args,
                   const MlaOperandNumbers& numbers) {
  const size_t q_at = numbers.q;
  return {.q = const_cast<T*>(args.data<const T>(q_at)),
          .kv = const_cast<T*>(args.data<const T>(q_at + 1)),
          .k_rope = const_cast<T*>(args.data<const T>(q_at + 2)),
          .qkv = const_cast<T*>(args.data<const T>(numbers.qkv)),
          .starts = a.documents.documents ? args.data<const int32_t>(numbers.starts) : nullptr,
          .rows = rows,
          .sequence = a.sequence,
          .positions = a.positions,
          .heads = static_cast<int>(a.heads),
          .plain = static_cast<int>(a.plain),
          .rotated = static_cast<int>(a.rotated),
          .value = static_cast<int>(a.value),
          .head_size = static_cast<int>(a.head_size)};
}

MlaAttributes checked_attributes(const OpSpec& spec) {
  const auto attributes = attributes_of<MlaAttributes>(spec);
  check(attributes.rotated <= 2 * kMaxPairs,
        "op {}: {} rotated elements of a head; its kernel takes up to {}", spec.op,
        attributes.rotated, 2 * kMaxPairs);
  return attributes;
}

/// Calls launch.operator()<elements of a place>(blocks).
template <class T, class Launch>
void launch_for_places(const MlaArgs<T>& args, const Launch& launch) {
  constexpr int kElems = kVectorElems<T>;
  const auto fits = [](int size) { return size % kElems == 0; };
  const unsigned blocks = grid_of(ceil_div(args.rows, int64_t{kTokens}));
  if (fits(args.plain) && fits(args.rotated) && fits(args.value) && fits(args.head_size) &&
      all_aligned(16, {args.q, args.kv, args.k_rope, args.qkv})) {
    launch.template operator()<kElems>(blocks);
  } else {
    launch.template operator()<1>(blocks);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

CudaKernel make_cuda_mla_qkv(const OpSpec& spec, CudaContext& /*context*/) {
  const MlaAttributes a = checked_attributes(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const HalfTurns turns =
      half_turns_of({.rotated = a.rotated, .theta = a.theta, .scaling = a.scaling});
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      const size_t qkv = a.documents.documents ? 4 : 3;
      const MlaArgs<T> o = args_of<T>(a, rows, args, {.q = 0, .starts = 3, .qkv = qkv});
      launch_for_places(o, [&]<int kElems>(unsigned blocks) {
        mla_qkv_kernel<kElems><<<blocks, kThreads, 0, args.stream>>>(o, turns);
      });
    }};
  });
}

CudaKernel make_cuda_mla_qkv_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const MlaAttributes a = checked_attributes(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const HalfTurns turns = half_turns_of(
      {.rotated = a.rotated, .theta = a.theta, .scaling = a.scaling, .inverse = true});
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      const size_t q = a.documents.documents ? 2 : 1;
      const MlaArgs<T> o = args_of<T>(a, rows, args, {.q = q, .starts = 1, .qkv = 0});
      launch_for_places(o, [&]<int kElems>(unsigned blocks) {
        mla_qkv_backward_kernel<kElems><<<blocks, kThreads, 0, args.stream>>>(o, turns);
      });
    }};
  });
}

}  // namespace braid
