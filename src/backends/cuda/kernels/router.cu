#include "ops/router.h"

#include <numeric>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/router_rows.cuh"
#include "ops/attributes.h"

// One warp per token, its logits in registers. What experts are compared by becomes an integer of
// the same order, so that the warp finds the largest with one instruction, and the lowest expert
// that has it with another. Without a bias the choice is that of the CPU for every input: it
// depends on logits alone.
namespace braid {
namespace {

constexpr int kTokensPerBlock = 8;  ///< one warp each
constexpr int kMaxPerToken = kWarpSize;

struct RouteArgs {
  const float* logits = nullptr;   // f32 [T,E]
  const float* bias = nullptr;     // f32 [E], or null
  const int32_t* given = nullptr;  // i32 [T,K], or null
  float* weights = nullptr;        // f32 [T,K]
  int32_t* chosen = nullptr;       // i32 [T,K]
  int64_t tokens = 0;
  int experts = 0;
  int per_token = 0;
  int groups = 1;
  int kept_groups = 1;
  bool sigmoid = false;
  bool normalize = true;
  float scale = 1;
  bool forced = false;  // ForcedChoice
  int64_t first = 0;
};

constexpr uint32_t kNotAllowed = 0;  ///< before every number
constexpr uint32_t kNanOrder = 0xffffffffu;

/// Has the order of numbers; -0 equals 0, and NaN is the largest.
__device__ uint32_t order_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return isnan(x) ? kNanOrder : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

/// The number of that order.
__device__ float number_of(uint32_t order) {
  return __uint_as_float((order >> 31) != 0 ? order & 0x7fffffffu : ~order);
}

/// What a warp chooses from: element i of a lane has index i * 32 + lane.
template <int kPerLane>
struct Candidates {
  uint32_t orders[kPerLane];

  /// The index of the largest, the lowest of equal ones, which is then not allowed any more.
  __device__ int take_largest() {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    uint32_t best = kNotAllowed;
    uint32_t index = 0xffffffffu;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (orders[i] > best) {
        best = orders[i];
        index = static_cast<uint32_t>(i * kWarpSize + lane);
      }
    }
    const uint32_t largest = __reduce_max_sync(kAllLanes, best);
    const uint32_t taken = __reduce_min_sync(kAllLanes, best == largest ? index : 0xffffffffu);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      orders[i] = taken == static_cast<uint32_t>(i * kWarpSize + lane) ? kNotAllowed : orders[i];
    }
    return static_cast<int>(taken);
  }
};

/// The logits, or scores with the bias.
template <int kPerLane>
__device__ Candidates<kPerLane> candidates_of(const TokenLogits<kPerLane>& token,
                                              const RouteArgs& args, const RowExp& row) {
  Candidates<kPerLane> candidates;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    float key = token.logits[i];
    if (args.bias != nullptr && token.has(i)) {
      key = (args.sigmoid ? sigmoid(key) : row.softmax(key)) + args.bias[token.expert(i)];
    }
    candidates.orders[i] = token.has(i) ? order_of(key) : kNotAllowed;
  }
  return candidates;
}

/// The score of a group, from the orders of its experts.
__device__ uint32_t group_order(const uint32_t* orders, int size, const RouteArgs& args) {
  uint32_t first = kNotAllowed;
  uint32_t second = kNotAllowed;
  for (int i = 0; i < size; ++i) {
    const uint32_t order = orders[i];
    second = max(second, min(first, order));
    first = max(first, order);
  }
  if (!args.sigmoid) {
    return first;
  }
  const auto score = [&](uint32_t order) {
    const float key = number_of(order);
    return args.bias != nullptr ? key : sigmoid(key);
  };
  return order_of(size == 1 ? score(first) : score(first) + score(second));
}

/// Leaves only the experts of the kept groups. `orders` [E] and `is_kept` [groups] are the warp's.
template <int kPerLane>
__device__ void keep_groups(Candidates<kPerLane>& candidates, const RouteArgs& args,
                            uint32_t* orders, uint32_t* is_kept) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int size = args.experts / args.groups;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (i * kWarpSize + lane < args.experts) {
      orders[i * kWarpSize + lane] = candidates.orders[i];
    }
  }
  __syncwarp();
  Candidates<kPerLane> groups;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int group = i * kWarpSize + lane;
    groups.orders[i] = kNotAllowed;
    if (group < args.groups) {
      groups.orders[i] = group_order(orders + group * size, size, args);
      is_kept[group] = 0;
    }
  }
  __syncwarp();
  for (int j = 0; j < args.kept_groups; ++j) {
    const int group = groups.take_largest();
    if (lane == 0) {
      is_kept[group] = 1;
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = i * kWarpSize + lane;
    if (expert < args.experts && is_kept[expert / size] == 0) {
      candidates.orders[i] = kNotAllowed;
    }
  }
}

/// The weight of the expert that this lane has chosen; lanes from `per_token` on have none.
__device__ float weight_of(float logit, bool is_chosen, const RowExp& row, const RouteArgs& args) {
  if (args.sigmoid) {
    const float score = is_chosen ? sigmoid(logit) : 0.0f;
    const float sum = warp_sum(score) + kTinySum;
    return args.scale * (args.normalize ? score / sum : score);
  }
  const float largest = args.normalize ? warp_max(is_chosen ? logit : -INFINITY) : row.largest;
  const float part = is_chosen ? expf(logit - largest) : 0.0f;
  const float total = args.normalize ? warp_sum(part) : row.total;
  const float weight = args.scale * (part / total);
  return isnan(row.total) ? row.total : weight;
}

__device__ int forced_expert(const RouteArgs& args, int64_t pair) {
  return static_cast<int>((pair + args.first) % args.experts);
}

/// The expert of the slot that is this lane's number, by scores; lanes from `per_token` on get any.
/// `memory` [E + groups] is the warp's.
template <int kPerLane>
__device__ int expert_by_score(const TokenLogits<kPerLane>& token, const RouteArgs& args,
                               const RowExp& row, uint32_t* memory) {
  auto candidates = candidates_of(token, args, row);
  if (args.groups > 1) {
    keep_groups(candidates, args, memory, memory + args.experts);
  }
  int expert = 0;
  for (int j = 0; j < args.per_token; ++j) {
    const int taken = candidates.take_largest();
    expert = static_cast<int>(threadIdx.x) % kWarpSize == j ? taken : expert;
  }
  return expert;
}

/// The same of token `at`, by the rule of `args`.
template <int kPerLane>
__device__ int chosen_expert(const TokenLogits<kPerLane>& token, const RouteArgs& args,
                             const RowExp& row, int64_t at, uint32_t* memory) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t pair = at * args.per_token + lane;
  if (args.given != nullptr) {
    return lane < args.per_token ? args.given[pair] : 0;
  }
  return args.forced ? forced_expert(args, pair) : expert_by_score(token, args, row, memory);
}

template <int kPerLane>
__global__ void __launch_bounds__(kTokensPerBlock* kWarpSize) route_kernel(RouteArgs args) {
  extern __shared__ uint32_t group_memory[];  // E + groups per warp, with groups only
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t at = int64_t{blockIdx.x} * kTokensPerBlock + warp;
  if (at >= args.tokens) {
    return;
  }
  const float* const logits = args.logits + at * args.experts;
  const TokenLogits<kPerLane> token(logits, args.experts);
  const RowExp row = token.row_exp();
  const bool is_chosen = lane < args.per_token;
  const int expert =
      chosen_expert(token, args, row, at, group_memory + warp * (args.experts + args.groups));
  const float weight = weight_of(is_chosen ? logits[expert] : 0.0f, is_chosen, row, args);
  if (is_chosen) {
    args.weights[at * args.per_token + lane] = weight;
    args.chosen[at * args.per_token + lane] = expert;
  }
}

struct RouteBackwardArgs {
  const float* logits = nullptr;     // f32 [T,E]
  const float* weights = nullptr;    // f32 [T,K]
  const int32_t* chosen = nullptr;   // i32 [T,K]
  const float* d_weights = nullptr;  // f32 [T,K]
  float* d_logits = nullptr;         // f32 [T,E]
  int64_t tokens = 0;
  int experts = 0;
  int per_token = 0;
  bool sigmoid = false;
  bool normalize = true;
  float scale = 1;
};

/// The formulas are those of the CPU's kernel: the gradient of a chosen logit.
__device__ float chosen_gradient(const RouteBackwardArgs& args, float logit, float w, float d,
                                 bool is_chosen, float softmax) {
  const float sum = warp_sum(w * d);
  if (!args.sigmoid) {
    return args.normalize ? w * (d - sum / args.scale) : w * d - softmax * sum;
  }
  const float s = sigmoid(logit);
  const float scores = warp_sum(is_chosen ? s : 0.0f) + kTinySum;
  const float of_score = args.normalize ? (args.scale * d - sum) / scores : args.scale * d;
  return of_score * s * (1.0f - s);
}

template <int kPerLane>
__global__ void __launch_bounds__(kTokensPerBlock* kWarpSize)
    route_backward_kernel(RouteBackwardArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t at =
      int64_t{blockIdx.x} * kTokensPerBlock + static_cast<int>(threadIdx.x) / kWarpSize;
  if (at >= args.tokens) {
    return;
  }
  const float* const logits = args.logits + at * args.experts;
  float* const d_logits = args.d_logits + at * args.experts;
  const bool is_chosen = lane < args.per_token;
  const int64_t choice = at * args.per_token + lane;
  const int expert = is_chosen ? args.chosen[choice] : 0;
  const float w = is_chosen ? args.weights[choice] : 0.0f;
  const float d = is_chosen ? args.d_weights[choice] : 0.0f;
  const bool is_dense = !args.sigmoid && !args.normalize;
  const TokenLogits<kPerLane> token(logits, is_dense ? args.experts : 0);
  const RowExp row = token.row_exp();
  const float logit = logits[expert];
  const float gradient =
      chosen_gradient(args, logit, w, d, is_chosen, is_dense ? row.softmax(logit) : 0.0f);
  const float sum = is_dense ? warp_sum(w * d) : 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (token.expert(i) < args.experts) {
      d_logits[token.expert(i)] = is_dense ? -row.softmax(token.logits[i]) * sum : 0.0f;
    }
  }
  __syncwarp();  // the warp's lanes see these before they are overwritten
  if (is_chosen) {
    d_logits[expert] = gradient;
  }
}

void check_sizes(const OpSpec& spec, int64_t experts, int64_t per_token) {
  check(experts <= kMaxRouterExperts, "op {}: {} experts; its kernel holds up to {} in registers",
        spec.op, experts, kMaxRouterExperts);
  check(per_token <= kMaxPerToken, "op {}: {} experts of a token; its kernel takes up to {}",
        spec.op, per_token, kMaxPerToken);
}

constexpr int kCountThreads = 1024;

struct CountArgs {
  const int32_t* chosen = nullptr;  // [choices]
  float* d_bias = nullptr;          // [experts]
  int64_t choices = 0;
  int experts = 0;
  float per_choice = 0;
  float mean = 0;
  bool accumulate = false;
};

/// One block; integer counts in shared memory, so the order of threads does not matter.
__global__ void __launch_bounds__(kCountThreads) count_choices_kernel(CountArgs args) {
  __shared__ int counts[kMaxRouterExperts];
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < args.experts; e += kCountThreads) {
    counts[e] = 0;
  }
  __syncthreads();
  for (int64_t i = thread; i < args.choices; i += kCountThreads) {
    atomicAdd(&counts[args.chosen[i]], 1);
  }
  __syncthreads();
  for (int e = thread; e < args.experts; e += kCountThreads) {
    const float before = args.accumulate ? args.d_bias[e] : 0.0f;
    args.d_bias[e] = before + (args.per_choice * static_cast<float>(counts[e]) - args.mean);
  }
}

struct SequenceCountArgs {
  const int32_t* chosen = nullptr;  // [T,K]
  float* counts = nullptr;          // [S,E]
  int64_t tokens = 0;
  int64_t per_token = 0;
  int experts = 0;
  SequenceRows rows;
};

/// One block per sequence, which may have no token here; integer counts as above.
__global__ void __launch_bounds__(kCountThreads) count_by_sequence_kernel(SequenceCountArgs args) {
  __shared__ int counts[kMaxRouterExperts];
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < args.experts; e += kCountThreads) {
    counts[e] = 0;
  }
  __syncthreads();
  const int64_t at = int64_t{blockIdx.x} * args.rows.sequence - args.rows.first;
  const int64_t begin = max(at, int64_t{0});
  const int64_t end = min(at + args.rows.sequence, args.tokens);
  for (int64_t i = begin * args.per_token + thread; i < end * args.per_token; i += kCountThreads) {
    atomicAdd(&counts[args.chosen[i]], 1);
  }
  __syncthreads();
  for (int e = thread; e < args.experts; e += kCountThreads) {
    args.counts[int64_t{blockIdx.x} * args.experts + e] = static_cast<float>(counts[e]);
  }
}

}  // namespace

CudaKernel make_cuda_route(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<RouteAttributes>(spec);
  const RouterRule& rule = attributes.rule;
  const Shape& logits = spec.operands[0].shape;
  check_sizes(spec, logits[1], rule.per_token);
  RouteArgs shape;
  shape.tokens = logits[0];
  shape.experts = static_cast<int>(logits[1]);
  shape.per_token = static_cast<int>(rule.per_token);
  shape.groups = static_cast<int>(rule.groups);
  shape.kept_groups = static_cast<int>(rule.kept_groups);
  shape.sigmoid = rule.sigmoid;
  shape.normalize = rule.normalize;
  shape.scale = static_cast<float>(rule.scale);
  shape.forced = attributes.choice.forced;
  shape.first = attributes.choice.first;
  return {.launch = [shape, attributes](const CudaKernelArgs& args) {
    RouteArgs o = shape;
    const size_t weights = attributes.weights_operand();
    o.logits = args.data<const float>(0);
    o.bias = attributes.has_bias ? args.data<const float>(1) : nullptr;
    o.given = attributes.source.given ? args.data<const int32_t>(weights - 1) : nullptr;
    o.weights = args.data<float>(weights);
    o.chosen = args.data<int32_t>(weights + 1);
    const size_t shared_bytes = o.groups == 1 ? 0
                                              : static_cast<size_t>(o.experts + o.groups) *
                                                    kTokensPerBlock * sizeof(uint32_t);
    dispatch_experts(o.experts, [&]<int kPerLane>() {
      route_kernel<kPerLane><<<grid_of(ceil_div(o.tokens, kTokensPerBlock)),
                               kTokensPerBlock * kWarpSize, shared_bytes, args.stream>>>(o);
    });
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

CudaKernel make_cuda_route_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const auto rule = attributes_of<RouterRule>(spec);
  const Shape& logits = spec.operands[0].shape;
  check_sizes(spec, logits[1], rule.per_token);
  RouteBackwardArgs shape;
  shape.tokens = logits[0];
  shape.experts = static_cast<int>(logits[1]);
  shape.per_token = static_cast<int>(rule.per_token);
  shape.sigmoid = rule.sigmoid;
  shape.normalize = rule.normalize;
  shape.scale = static_cast<float>(rule.scale);
  return {.launch = [shape](const CudaKernelArgs& args) {
    RouteBackwardArgs o = shape;
    o.logits = args.data<const float>(0);
    o.weights = args.data<const float>(1);
    o.chosen = args.data<const int32_t>(2);
    o.d_weights = args.data<const float>(3);
    o.d_logits = args.data<float>(4);
    dispatch_experts(o.experts, [&]<int kPerLane>() {
      route_backward_kernel<kPerLane><<<grid_of(ceil_div(o.tokens, kTokensPerBlock)),
                                        kTokensPerBlock * kWarpSize, 0, args.stream>>>(o);
    });
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

CudaKernel make_cuda_count_choices(const OpSpec& spec, CudaContext& /*context*/) {
  const Shape& chosen = spec.operands[0].shape;
  const int64_t experts = spec.operands[1].shape[0];
  check_sizes(spec, experts, chosen[1]);
  const int64_t divisor = std::gcd(experts, chosen[1]);
  CountArgs shape;
  shape.choices = chosen.num_elems();
  shape.experts = static_cast<int>(experts);
  shape.per_choice = static_cast<float>(experts / divisor);
  shape.mean = static_cast<float>(chosen[0] * (chosen[1] / divisor));
  shape.accumulate = attributes_of<RouterGradAttributes>(spec).accumulate;
  return {.launch = [shape](const CudaKernelArgs& args) {
    CountArgs o = shape;
    o.chosen = args.data<const int32_t>(0);
    o.d_bias = args.data<float>(1);
    count_choices_kernel<<<1, kCountThreads, 0, args.stream>>>(o);
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

CudaKernel make_cuda_count_by_sequence(const OpSpec& spec, CudaContext& /*context*/) {
  const Shape& chosen = spec.operands[0].shape;
  const Shape& counts = spec.operands[1].shape;
  check_sizes(spec, counts[1], chosen[1]);
  SequenceCountArgs shape;
  shape.tokens = chosen[0];
  shape.per_token = chosen[1];
  shape.experts = static_cast<int>(counts[1]);
  shape.rows = attributes_of<SequenceRows>(spec);
  return {.launch = [shape, sequences = counts[0]](const CudaKernelArgs& args) {
    SequenceCountArgs o = shape;
    o.chosen = args.data<const int32_t>(0);
    o.counts = args.data<float>(1);
    count_by_sequence_kernel<<<grid_of(sequences), kCountThreads, 0, args.stream>>>(o);
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace braid
