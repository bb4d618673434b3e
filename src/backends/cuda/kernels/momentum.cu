#include "ops/momentum.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/device_vector.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "ops/attributes.h"
#include "ops/optimizer.h"

// Elementwise in fp32, like the CPU kernels. Bitwise repeatable for any number of elements.
namespace braid {
namespace {

constexpr int kMoveThreads = 256;
constexpr int kMoveElems = 4;  // per thread and array

/// Stands for the moment of an update that keeps none.
struct NoMoment {};

struct MovedElem {
  float moment;     // the new exp_avg
  float direction;  // of the weight, times the learning rate
};

struct LionRule {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;

  __device__ MovedElem operator()(float g, float m) const {
    const float mean = beta1 * m + one_minus_beta1 * g;
    const float sign = (mean > 0 ? 1.0f : 0.0f) - (mean < 0 ? 1.0f : 0.0f);
    return {beta2 * m + one_minus_beta2 * g, sign};
  }
};

struct SgdRule {
  float momentum;
  bool nesterov;

  __device__ MovedElem operator()(float g, float m) const {
    const float sum = momentum * m + g;
    return {sum, nesterov ? g + momentum * sum : sum};
  }
};

/// Moment: float, Bf16 or NoMoment.
template <class Grad, class Moment>
struct MoveArgs {
  const Grad* grad = nullptr;      // [n]
  const float* scale = nullptr;    // [1]
  const float* scalars = nullptr;  // [3], or [4] with bf16 moments: see adamw_scalars
  float* weight = nullptr;         // [n]
  Moment* exp_avg = nullptr;       // [n]
  Bf16* param = nullptr;           // [n] or null
  int64_t count = 0;
  double weight_decay = 0;
  double group_rate = 1;  // RateAttribute
};

__device__ float kept_moment(float moment, float /*grad*/, float /*weight*/, float /*before*/,
                             uint32_t /*seed*/) {
  return moment;
}

/// Rounds as the CPU's kernel does: random bits come from what the update has read.
__device__ Bf16 kept_moment(float moment, float grad, float weight, Bf16 before, uint32_t seed) {
  const uint32_t random = moment_rounding_bits(__float_as_uint(grad), __float_as_uint(weight),
                                               uint32_t{__bfloat16_as_ushort(before)}, seed);
  return __ushort_as_bfloat16(bf16_rounded_randomly(__float_as_uint(moment), random));
}

/// Elements at..at+4 of each array. All loads come first, even if the step changes nothing.
template <bool kAligned, class Rule, class Grad, class Moment>
__device__ void move_vector(const Rule& rule, const MoveArgs<Grad, Moment>& args, int64_t at) {
  constexpr bool kHasMoment = !std::is_same_v<Moment, NoMoment>;
  constexpr int V = kMoveElems;
  const int64_t valid = args.count - at;
  const auto grad = load_vector<V, kAligned>(args.grad + at, valid);
  auto weight = load_vector<V, kAligned>(args.weight + at, valid);
  DeviceVector<std::conditional_t<kHasMoment, Moment, float>, V> exp_avg{};
  if constexpr (kHasMoment) {
    exp_avg = load_vector<V, kAligned>(args.exp_avg + at, valid);
  }
  const float scale = *args.scale;
  const double lr = args.group_rate * static_cast<double>(args.scalars[0]);
  const auto rate = static_cast<float>(lr);
  const auto decay = static_cast<float>(lr * args.weight_decay);
  const uint32_t seed = sizeof(Moment) == 2 ? __float_as_uint(args.scalars[3]) : 0;
  if (scale != 0.0f) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float read = widen(grad.elems[i]);
      const MovedElem moved = rule(read * scale, widen(exp_avg.elems[i]));
      exp_avg.elems[i] = kept_moment(moved.moment, read, weight.elems[i], exp_avg.elems[i], seed);
      const float decayed = weight.elems[i] - decay * weight.elems[i];
      weight.elems[i] = decayed - rate * moved.direction;
    }
    if constexpr (kHasMoment) {
      store_vector<kAligned>(args.exp_avg + at, exp_avg, valid);
    }
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

template <bool kAligned, class Rule, class Grad, class Moment>
__global__ void __launch_bounds__(kMoveThreads)
    move_kernel(Rule rule, MoveArgs<Grad, Moment> args) {
  const int64_t block = int64_t{blockIdx.x} * kMoveThreads;
  const int64_t at = (block + threadIdx.x) * kMoveElems;
  if (kAligned && (block + kMoveThreads) * kMoveElems <= args.count) {
    move_vector<true>(rule, args, at);
  } else {
    move_vector<false>(rule, args, at);
  }
}

struct MoveFacts {
  double weight_decay = 0;
  double group_rate = 1;
  bool has_param = false;
};

/// The spec's kernel. The moment is operand 4, and the parameter is the last operand.
template <class Grad, class Moment, class Rule>
CudaKernel moving_kernel(const OpSpec& spec, const MoveFacts& facts, const Rule& rule) {
  constexpr bool kHasMoment = !std::is_same_v<Moment, NoMoment>;
  const int64_t count = spec.operands[0].shape.num_elems();
  return {.launch = [=](const CudaKernelArgs& kernel) {
    MoveArgs<Grad, Moment> args{.grad = kernel.data<const Grad>(0),
                                .scale = kernel.data<const float>(1),
                                .scalars = kernel.data<const float>(2),
                                .weight = kernel.data<float>(3),
                                .count = count,
                                .weight_decay = facts.weight_decay,
                                .group_rate = facts.group_rate};
    bool aligned =
        all_aligned(16, {args.weight}) && all_aligned(kMoveElems * sizeof(Grad), {args.grad});
    if constexpr (kHasMoment) {
      args.exp_avg = kernel.data<Moment>(4);
      aligned = aligned && all_aligned(kMoveElems * sizeof(Moment), {args.exp_avg});
    }
    if (facts.has_param) {
      args.param = kernel.data<Bf16>(kHasMoment ? 5 : 4);
      aligned = aligned && all_aligned(8, {args.param});
    }
    const unsigned grid = grid_of(ceil_div(count, kMoveElems * kMoveThreads));
    if (aligned) {
      move_kernel<true><<<grid, kMoveThreads, 0, kernel.stream>>>(rule, args);
    } else {
      move_kernel<false><<<grid, kMoveThreads, 0, kernel.stream>>>(rule, args);
    }
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

template <class Rule>
CudaKernel with_moment(const OpSpec& spec, const MoveFacts& facts, const Rule& rule) {
  return dispatch_cuda_gradient(spec, [&]<class Grad>() {
    return moments_dtype(spec) == DType::kBF16 ? moving_kernel<Grad, Bf16>(spec, facts, rule)
                                               : moving_kernel<Grad, float>(spec, facts, rule);
  });
}

}  // namespace

CudaKernel make_cuda_lion(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<LionAttributes>(spec);
  return with_moment(spec,
                     {.weight_decay = attributes.weight_decay,
                      .group_rate = attributes.group.rate,
                      .has_param = attributes.has_param},
                     LionRule{.beta1 = static_cast<float>(attributes.beta1),
                              .one_minus_beta1 = static_cast<float>(1.0 - attributes.beta1),
                              .beta2 = static_cast<float>(attributes.beta2),
                              .one_minus_beta2 = static_cast<float>(1.0 - attributes.beta2)});
}

CudaKernel make_cuda_sgd(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<SgdAttributes>(spec);
  const MoveFacts facts{.weight_decay = attributes.weight_decay,
                        .group_rate = attributes.group.rate,
                        .has_param = attributes.has_param};
  const SgdRule rule{.momentum = static_cast<float>(attributes.momentum),
                     .nesterov = attributes.nesterov};
  if (attributes.momentum > 0) {
    return with_moment(spec, facts, rule);
  }
  return dispatch_cuda_gradient(
      spec, [&]<class Grad>() { return moving_kernel<Grad, NoMoment>(spec, facts, rule); });
}

}  // namespace braid
