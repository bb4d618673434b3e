#include "ops/mla_qkv.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/rope_angles.cuh"
#include "ops/attributes.h"

// One block per token, with its angles in shared memory; one thread per element of the result.
namespace braid {
namespace {

constexpr int kThreads = 256;

template <class T>
struct MlaArgs {
  T* q = nullptr;                   // [N, heads * (plain + rotated)]
  T* kv = nullptr;                  // [N, heads * (plain + value)]
  T* k_rope = nullptr;              // [N, rotated]
  T* qkv = nullptr;                 // [N, 3 * heads * head_size]
  const int32_t* starts = nullptr;  // [N], of documents, or null
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

/// Element i of a head's rotated part.
template <class T>
__device__ float rotated_elem(const T* part, int i, const float2* angles) {
  const float2 angle = angles[i / 2];
  const float own = widen(part[i]);
  const float other = widen(part[i ^ 1]);
  return own * angle.x + (i % 2 == 0 ? -other : other) * angle.y;
}

template <class T>
__device__ void fill_angles(const MlaArgs<T>& args, const HalfTurns& turns, float2* angles) {
  const double position = row_position(args.positions, args.sequence, args.starts, blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < args.rotated / 2; i += kThreads) {
    angles[i] = angle_of(turns, position, i);
  }
  __syncthreads();
}

template <class T>
__device__ float value_elem(const MlaArgs<T>& args, const T* kv, int at) {
  return at < args.value ? widen(kv[args.plain + at]) : 0.0f;
}

/// Element `at` of a query or key head whose plain and rotated parts these are.
template <class T>
__device__ float score_elem(const MlaArgs<T>& args, const T* plain, const T* rotated, int at,
                            const float2* angles) {
  if (at < args.plain) {
    return widen(plain[at]);
  }
  return at < args.plain + args.rotated ? rotated_elem(rotated, at - args.plain, angles) : 0.0f;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    mla_qkv_kernel(MlaArgs<T> args, const __grid_constant__ HalfTurns turns) {
  __shared__ float2 angles[kMaxPairs];
  fill_angles(args, turns, angles);
  const int64_t row = blockIdx.x;
  const T* const k_rope = args.k_rope + row * args.rotated;
  const int width = static_cast<int>(args.row_of_heads());
  T* const qkv = args.qkv + row * 3 * width;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    const int head = i / args.head_size;
    const int at = i - head * args.head_size;
    const T* const q = args.q + row * args.row_of_q() + head * (args.plain + args.rotated);
    const T* const kv = args.kv + row * args.row_of_kv() + head * (args.plain + args.value);
    qkv[i] = narrow<T>(score_elem(args, q, q + args.plain, at, angles));
    qkv[width + i] = narrow<T>(score_elem(args, kv, k_rope, at, angles));
    qkv[2 * width + i] = narrow<T>(value_elem(args, kv, at));
  }
}

/// The sum over heads of the rotated parts of keys, rotated back.
template <class T>
__device__ void sum_rotated(const MlaArgs<T>& args, const T* keys, const float2* angles,
                            T* d_rope) {
  for (int pair = static_cast<int>(threadIdx.x); pair < args.rotated / 2; pair += kThreads) {
    float x = 0;
    float y = 0;
    for (int head = 0; head < args.heads; ++head) {
      const T* const from = keys + head * args.head_size + args.plain + 2 * pair;
      x += widen(from[0]);
      y += widen(from[1]);
    }
    d_rope[2 * pair] = narrow<T>(x * angles[pair].x - y * angles[pair].y);
    d_rope[2 * pair + 1] = narrow<T>(y * angles[pair].x + x * angles[pair].y);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    mla_qkv_backward_kernel(MlaArgs<T> args, const __grid_constant__ HalfTurns turns) {
  __shared__ float2 angles[kMaxPairs];
  fill_angles(args, turns, angles);
  const int64_t row = blockIdx.x;
  const int width = static_cast<int>(args.row_of_heads());
  const T* const queries = args.qkv + row * 3 * width;
  const T* const keys = queries + width;
  const T* const values = keys + width;
  const int score = args.plain + args.rotated;
  T* const d_q = args.q + row * args.row_of_q();
  for (int i = static_cast<int>(threadIdx.x); i < args.heads * score; i += kThreads) {
    const int head = i / score;
    const T* const from = queries + head * args.head_size;
    d_q[i] = narrow<T>(score_elem(args, from, from + args.plain, i - head * score, angles));
  }
  const int kv_size = args.plain + args.value;
  T* const d_kv = args.kv + row * args.row_of_kv();
  for (int i = static_cast<int>(threadIdx.x); i < args.heads * kv_size; i += kThreads) {
    const int head = i / kv_size;
    const int at = i - head * kv_size;
    const int64_t from = int64_t{head} * args.head_size;
    d_kv[i] = at < args.plain ? keys[from + at] : values[from + at - args.plain];
  }
  sum_rotated(args, keys, angles, args.k_rope + row * args.rotated);
}

/// Operands: q or its gradient, in front of the others; starts of documents, if it has them; qkv.
struct MlaOperandNumbers {
  size_t q;
  size_t starts;
  size_t qkv;
};

template <class T>
MlaArgs<T> args_of(const MlaAttributes& a, const CudaKernelArgs& args,
                   const MlaOperandNumbers& numbers) {
  const size_t q_at = numbers.q;
  return {.q = const_cast<T*>(args.data<const T>(q_at)),
          .kv = const_cast<T*>(args.data<const T>(q_at + 1)),
          .k_rope = const_cast<T*>(args.data<const T>(q_at + 2)),
          .qkv = const_cast<T*>(args.data<const T>(numbers.qkv)),
          .starts = a.documents.documents ? args.data<const int32_t>(numbers.starts) : nullptr,
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

}  // namespace

CudaKernel make_cuda_mla_qkv(const OpSpec& spec, CudaContext& /*context*/) {
  const MlaAttributes a = checked_attributes(spec);
  const unsigned rows = grid_of(spec.operands[0].shape[0]);
  const HalfTurns turns =
      half_turns_of({.rotated = a.rotated, .theta = a.theta, .scaling = a.scaling});
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      const size_t qkv = a.documents.documents ? 4 : 3;
      mla_qkv_kernel<<<rows, kThreads, 0, args.stream>>>(
          args_of<T>(a, args, {.q = 0, .starts = 3, .qkv = qkv}), turns);
      BRAID_CUDA_CHECK(cudaGetLastError());
    }};
  });
}

CudaKernel make_cuda_mla_qkv_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const MlaAttributes a = checked_attributes(spec);
  const unsigned rows = grid_of(spec.operands[0].shape[0]);
  const HalfTurns turns = half_turns_of(
      {.rotated = a.rotated, .theta = a.theta, .scaling = a.scaling, .inverse = true});
  return dispatch_cuda_dtype(spec, 0, [=]<class T>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      const size_t q = a.documents.documents ? 2 : 1;
      mla_qkv_backward_kernel<<<rows, kThreads, 0, args.stream>>>(
          args_of<T>(a, args, {.q = q, .starts = 1, .qkv = 0}), turns);
      BRAID_CUDA_CHECK(cudaGetLastError());
    }};
  });
}

}  // namespace braid
