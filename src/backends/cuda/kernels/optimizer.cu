#include "ops/optimizer.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "ops/attributes.h"

// Squares are summed in f64, in blocks of a fixed number of elements and then block by block, so
// that the norm is bitwise repeatable and does not depend on the device. AdamW computes in fp32
// like the CPU kernel.
namespace braid {
namespace {

constexpr int kNormThreads = 256;
constexpr int64_t kNormBlockElems = kSquaredNormBlockElems;
constexpr int kFinalThreads = 1024;
constexpr int kAdamwThreads = 256;

/// This thread's sum of squares over elements [begin, end). With kAligned they are a whole block.
template <bool kAligned, class T>
__device__ double squares_of(const T* x, int64_t begin, int64_t end) {
  constexpr int V = kVectorElems<T>;
  double sum = 0;
#pragma unroll 4
  for (int64_t at = begin + threadIdx.x * V; at < end; at += kNormThreads * V) {
    const auto values = load_vector<V, kAligned>(x + at, end - at);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const double value = widen(values.elems[i]);
      sum += value * value;
    }
  }
  return sum;
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kNormThreads)
    block_squares_kernel(const T* x, int64_t count, double* partials) {
  __shared__ double shared[kWarpSize];
  const int64_t begin = blockIdx.x * kNormBlockElems;
  const int64_t end = begin + kNormBlockElems;
  const double sum =
      block_sum(kAligned && end <= count ? squares_of<true>(x, begin, end)
                                         : squares_of<false>(x, begin, min(count, end)),
                shared);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = sum;
  }
}

/// Sum of doubles by one block of kFinalThreads; every thread gets it.
__device__ double final_sum(const double* partials, int64_t count) {
  __shared__ double shared[kWarpSize];
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kFinalThreads) {
    sum += partials[i];
  }
  return block_sum(sum, shared);
}

__global__ void __launch_bounds__(kFinalThreads)
    sum_kernel(const double* partials, int64_t count, double* sum) {
  const double total = final_sum(partials, count);
  if (threadIdx.x == 0) {
    *sum = total;
  }
}

__global__ void __launch_bounds__(kFinalThreads)
    clip_scale_kernel(const double* partials, int64_t count, double max_norm, float* grad_norm,
                      float* scale) {
  const double norm = sqrt(final_sum(partials, count));
  if (threadIdx.x == 0) {
    const double clipped = max_norm == 0 ? 1.0 : fmin(1.0, max_norm / (norm + 1e-6));
    *grad_norm = static_cast<float>(norm);
    *scale = isfinite(norm) ? static_cast<float>(clipped) : 0.0f;
  }
}

/// Grad, Moment: float or Bf16.
template <class Grad, class Moment>
struct AdamwArgs {
  const Grad* grad = nullptr;      // [n]
  const float* scale = nullptr;    // [1]
  const float* scalars = nullptr;  // [3], or [4] with bf16 moments: see adamw_scalars
  float* weight = nullptr;         // [n]
  Moment* exp_avg = nullptr;       // [n]
  Moment* exp_avg_sq = nullptr;    // [n]
  Bf16* param = nullptr;           // [n] or null
  int64_t count = 0;
  double weight_decay = 0;
  double group_rate = 1;  // RateAttribute
  float beta1 = 0;
  float beta2 = 0;
  float one_minus_beta1 = 0;
  float one_minus_beta2 = 0;
  float epsilon = 0;
};

/// Factors computed from the step's scalars.
struct AdamwStep {
  float scale;
  float decay;        // lr * weight_decay
  float step_size;    // lr / c1
  float inv_sqrt_c2;  // 1 / sqrt(c2)
  uint32_t seed;      // of random rounding; unused by fp32 moments
};

template <class Grad, class Moment>
__device__ AdamwStep adamw_step(const AdamwArgs<Grad, Moment>& args) {
  const double lr = args.group_rate * static_cast<double>(args.scalars[0]);
  return {.scale = *args.scale,
          .decay = static_cast<float>(lr * args.weight_decay),
          .step_size = static_cast<float>(lr / static_cast<double>(args.scalars[1])),
          .inv_sqrt_c2 = static_cast<float>(1.0 / sqrt(static_cast<double>(args.scalars[2]))),
          .seed = sizeof(Moment) == 2 ? __float_as_uint(args.scalars[3]) : 0};
}

__device__ void store_moments(float& exp_avg, float& exp_avg_sq, float m, float v, float /*grad*/,
                              float /*weight*/, uint32_t /*seed*/) {
  exp_avg = m;
  exp_avg_sq = v;
}

/// Rounds as the CPU's kernel does: random bits come from what the update has read.
__device__ void store_moments(Bf16& exp_avg, Bf16& exp_avg_sq, float m, float v, float grad,
                              float weight, uint32_t seed) {
  const uint32_t moments =
      uint32_t{__bfloat16_as_ushort(exp_avg)} | (uint32_t{__bfloat16_as_ushort(exp_avg_sq)} << 16);
  const uint32_t random =
      moment_rounding_bits(__float_as_uint(grad), __float_as_uint(weight), moments, seed);
  exp_avg = __ushort_as_bfloat16(bf16_rounded_randomly(__float_as_uint(m), random));
  exp_avg_sq = __ushort_as_bfloat16(bf16_rounded_randomly(__float_as_uint(v), random >> 16));
}

/// Elements at..at+4 of each array. All loads come first, even if the step changes nothing, so that
/// none waits for `scale`; `step` is shared by the block.
template <bool kAligned, class Grad, class Moment>
__device__ void adamw_vector(const AdamwArgs<Grad, Moment>& args, int64_t at, AdamwStep& step) {
  constexpr int V = 4;
  const int64_t valid = args.count - at;
  const auto grad = load_vector<V, kAligned>(args.grad + at, valid);
  auto weight = load_vector<V, kAligned>(args.weight + at, valid);
  auto exp_avg = load_vector<V, kAligned>(args.exp_avg + at, valid);
  auto exp_avg_sq = load_vector<V, kAligned>(args.exp_avg_sq + at, valid);
  if (threadIdx.x == 0) {
    step = adamw_step(args);
  }
  __syncthreads();
  if (step.scale != 0.0f) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float read = widen(grad.elems[i]);
      const float g = read * step.scale;
      const float m = args.beta1 * widen(exp_avg.elems[i]) + args.one_minus_beta1 * g;
      const float v = args.beta2 * widen(exp_avg_sq.elems[i]) + args.one_minus_beta2 * g * g;
      const float decayed = weight.elems[i] - step.decay * weight.elems[i];
      const float denominator = sqrtf(v) * step.inv_sqrt_c2 + args.epsilon;
      store_moments(exp_avg.elems[i], exp_avg_sq.elems[i], m, v, read, weight.elems[i], step.seed);
      weight.elems[i] = decayed - step.step_size * m / denominator;
    }
    store_vector<kAligned>(args.exp_avg + at, exp_avg, valid);
    store_vector<kAligned>(args.exp_avg_sq + at, exp_avg_sq, valid);
    store_vector<kAligned>(args.weight + at, weight, valid);
  }
  if (args.param != nullptr) {
    DeviceVector<Bf16, V> param;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      param.elems[i] = narrow<Bf16>(weight.elems[i]);
    }
    store_vector<kAligned>(args.param + at, param, valid);
  }
}

/// 4 elements per thread and array: 64 bytes in flight, which is enough at 40 % of a
/// multiprocessor's maximum number of threads.
template <bool kAligned, class Grad, class Moment>
__global__ void __launch_bounds__(kAdamwThreads) adamw_kernel(AdamwArgs<Grad, Moment> args) {
  __shared__ AdamwStep step;
  const int64_t block = int64_t{blockIdx.x} * kAdamwThreads;
  const int64_t at = (block + threadIdx.x) * 4;
  if (kAligned && (block + kAdamwThreads) * 4 <= args.count) {
    adamw_vector<true>(args, at, step);
  } else {
    adamw_vector<false>(args, at, step);
  }
}

template <class T>
CudaKernel squared_norm_kernel(int64_t count) {
  const unsigned blocks = grid_of(ceil_div(count, kNormBlockElems));
  const auto launch = [=](const CudaKernelArgs& args) {
    const T* const x = args.data<const T>(0);
    auto* const partials = reinterpret_cast<double*>(args.scratch);
    if (all_aligned(16, {x})) {
      block_squares_kernel<true><<<blocks, kNormThreads, 0, args.stream>>>(x, count, partials);
    } else {
      block_squares_kernel<false><<<blocks, kNormThreads, 0, args.stream>>>(x, count, partials);
    }
    BRAID_CUDA_CHECK(cudaGetLastError());
    sum_kernel<<<1, kFinalThreads, 0, args.stream>>>(partials, blocks, args.data<double>(1));
    BRAID_CUDA_CHECK(cudaGetLastError());
  };
  return {.launch = launch, .scratch_bytes = squared_norm_scratch_bytes(count)};
}

template <class Grad, class Moment>
AdamwArgs<Grad, Moment> adamw_args(const AdamwAttributes& attributes, int64_t count) {
  AdamwArgs<Grad, Moment> args;
  args.count = count;
  args.weight_decay = attributes.weight_decay;
  args.group_rate = attributes.group.rate;
  args.beta1 = static_cast<float>(attributes.beta1);
  args.beta2 = static_cast<float>(attributes.beta2);
  args.one_minus_beta1 = static_cast<float>(1.0 - attributes.beta1);
  args.one_minus_beta2 = static_cast<float>(1.0 - attributes.beta2);
  args.epsilon = static_cast<float>(attributes.epsilon);
  return args;
}

/// `args` with the operands of one launch.
template <class Grad, class Moment>
void launch_adamw(AdamwArgs<Grad, Moment> args, const CudaKernelArgs& kernel, bool has_param) {
  args.grad = kernel.data<const Grad>(0);
  args.scale = kernel.data<const float>(1);
  args.scalars = kernel.data<const float>(2);
  args.weight = kernel.data<float>(3);
  args.exp_avg = kernel.data<Moment>(4);
  args.exp_avg_sq = kernel.data<Moment>(5);
  args.param = has_param ? kernel.data<Bf16>(6) : nullptr;
  const unsigned grid = grid_of(ceil_div(args.count, 4 * kAdamwThreads));
  const bool aligned = all_aligned(16, {args.weight}) &&
                       all_aligned(4 * sizeof(Grad), {args.grad}) &&
                       all_aligned(4 * sizeof(Moment), {args.exp_avg, args.exp_avg_sq}) &&
                       all_aligned(8, {args.param});
  if (aligned) {
    adamw_kernel<true><<<grid, kAdamwThreads, 0, kernel.stream>>>(args);
  } else {
    adamw_kernel<false><<<grid, kAdamwThreads, 0, kernel.stream>>>(args);
  }
  BRAID_CUDA_CHECK(cudaGetLastError());
}

template <class Grad, class Moment>
CudaKernel adamw_with_moments(const OpSpec& spec) {
  const auto attributes = attributes_of<AdamwAttributes>(spec);
  const auto fixed = adamw_args<Grad, Moment>(attributes, spec.operands[0].shape.num_elems());
  const bool has_param = attributes.has_param;
  const auto launch = [=](const CudaKernelArgs& args) { launch_adamw(fixed, args, has_param); };
  return {.launch = launch};
}

template <class Grad>
struct BalanceArgs {
  const Grad* grad = nullptr;    // [count]
  const float* scale = nullptr;  // [1]
  float* weight = nullptr;       // [count]
  Bf16* param = nullptr;         // [count], or null
  float rate = 0;
  int64_t count = 0;
};

template <class Grad>
__global__ void __launch_bounds__(kAdamwThreads) balance_kernel(BalanceArgs<Grad> args) {
  const int64_t i = int64_t{blockIdx.x} * kAdamwThreads + threadIdx.x;
  if (i >= args.count) {
    return;
  }
  const float grad = widen(args.grad[i]);
  float weight = args.weight[i];
  if (*args.scale != 0.0f) {
    weight -= args.rate * static_cast<float>((grad > 0 ? 1 : 0) - (grad < 0 ? 1 : 0));
    args.weight[i] = weight;
  }
  if (args.param != nullptr) {
    args.param[i] = narrow<Bf16>(weight);
  }
}

struct AverageArgs {
  const float* weight = nullptr;  // [count]
  const float* scale = nullptr;   // [1]
  float* average = nullptr;       // [count]
  float step = 0;                 // 1 - decay
  int64_t count = 0;
};

template <bool kAligned>
__global__ void __launch_bounds__(kAdamwThreads) average_kernel(AverageArgs args) {
  constexpr int V = kVectorElems<float>;
  const int64_t at = (int64_t{blockIdx.x} * kAdamwThreads + threadIdx.x) * V;
  if (at >= args.count || *args.scale == 0.0f) {
    return;
  }
  const auto weight = load_vector<V, kAligned>(args.weight + at, args.count - at);
  auto average = load_vector<V, kAligned>(args.average + at, args.count - at);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    average.elems[i] += args.step * (weight.elems[i] - average.elems[i]);
  }
  store_vector<kAligned>(args.average + at, average, args.count - at);
}

}  // namespace

CudaKernel make_cuda_squared_norm(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_cuda_dtype(spec, 0, [&]<class T>() { return squared_norm_kernel<T>(count); });
}

CudaKernel make_cuda_sum(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return {.launch = [=](const CudaKernelArgs& args) {
    sum_kernel<<<1, kFinalThreads, 0, args.stream>>>(args.data<const double>(0), count,
                                                     args.data<double>(1));
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

CudaKernel make_cuda_clip_scale(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const double max_norm = attributes_of<ClipScaleAttributes>(spec).max_norm;
  return {.launch = [=](const CudaKernelArgs& args) {
    clip_scale_kernel<<<1, kFinalThreads, 0, args.stream>>>(
        args.data<const double>(0), count, max_norm, args.data<float>(1), args.data<float>(2));
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

CudaKernel make_cuda_adamw(const OpSpec& spec, CudaContext& /*context*/) {
  return dispatch_cuda_gradient(spec, [&]<class Grad>() {
    return moments_dtype(spec) == DType::kBF16 ? adamw_with_moments<Grad, Bf16>(spec)
                                               : adamw_with_moments<Grad, float>(spec);
  });
}

CudaKernel make_cuda_balance_update(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<BalanceUpdateAttributes>(spec);
  const int64_t count = spec.operands[0].shape.num_elems();
  return dispatch_cuda_gradient(spec, [&]<class Grad>() -> CudaKernel {
    return {.launch = [=](const CudaKernelArgs& args) {
      const BalanceArgs<Grad> o{.grad = args.data<const Grad>(0),
                                .scale = args.data<const float>(1),
                                .weight = args.data<float>(2),
                                .param = attributes.has_param ? args.data<Bf16>(3) : nullptr,
                                .rate = static_cast<float>(attributes.rate),
                                .count = count};
      balance_kernel<<<grid_of(ceil_div(count, kAdamwThreads)), kAdamwThreads, 0, args.stream>>>(o);
      BRAID_CUDA_CHECK(cudaGetLastError());
    }};
  });
}

CudaKernel make_cuda_average_weights(const OpSpec& spec, CudaContext& /*context*/) {
  const int64_t count = spec.operands[0].shape.num_elems();
  const double decay = attributes_of<AverageWeightsAttributes>(spec).decay;
  return {.launch = [=](const CudaKernelArgs& args) {
    const AverageArgs o{.weight = args.data<const float>(0),
                        .scale = args.data<const float>(1),
                        .average = args.data<float>(2),
                        .step = static_cast<float>(1.0 - decay),
                        .count = count};
    const unsigned grid = grid_of(ceil_div(count, kVectorElems<float> * kAdamwThreads));
    if (all_aligned(16, {o.weight, o.average})) {
      average_kernel<true><<<grid, kAdamwThreads, 0, args.stream>>>(o);
    } else {
      average_kernel<false><<<grid, kAdamwThreads, 0, args.stream>>>(o);
    }
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace braid
