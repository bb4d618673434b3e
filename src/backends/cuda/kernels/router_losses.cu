#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/router_rows.cuh"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "ops/attributes.h"
#include "ops/router.h"

// One warp per token at a time. Every block first divides the counts by their sum, for its tokens;
// with counts of sequences, again for each sequence that it has tokens of.
// The losses of a block's tokens are added in double, in an order that depends on the shape only,
// and a second kernel adds those of the blocks: bitwise repeatable on any device.
namespace braid {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kTokensPerBlock = static_cast<int>(kRouterLossTokens);
constexpr int kNumLosses = 2;

struct RouterLossArgs {
  const float* logits = nullptr;      // f32 [T,E]
  const float* counts = nullptr;      // f32 [E] or [S,E]
  const float* loss_scale = nullptr;  // f32 [1]
  float* d_logits = nullptr;          // f32 [T,E], of the backward
  double* partials = nullptr;         // f64 [blocks,2], of the forward
  int64_t tokens = 0;
  SequenceRows rows;
  int experts = 0;
  bool sigmoid = false;
  float balance = 0;  // times the number of experts
  float z = 0;
};

/// Tokens of one block that are of one sequence.
struct TokenRun {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t sequence = 0;
};

/// From `begin` on.
__device__ TokenRun token_run(const RouterLossArgs& args, int64_t begin, int64_t end_of_block) {
  if (args.rows.sequence == 0) {
    return {begin, end_of_block, 0};
  }
  const int64_t sequence = (args.rows.first + begin) / args.rows.sequence;
  const int64_t end = (sequence + 1) * args.rows.sequence - args.rows.first;
  return {begin, min(end, end_of_block), sequence};
}

/// The share of rows of each expert in a sequence, in `shares` [E]; 0 if there are none. All
/// threads of the block call it.
__device__ void fill_shares(const RouterLossArgs& args, int64_t sequence, float* shares) {
  const float* const counts = args.counts + sequence * args.experts;
  __syncthreads();  // shares of the sequence before have been read
  __shared__ double sums[kWarpSize];
  double total = 0;
  for (int e = static_cast<int>(threadIdx.x); e < args.experts; e += kThreads) {
    total += static_cast<double>(counts[e]);
  }
  total = block_sum(total, sums);
  for (int e = static_cast<int>(threadIdx.x); e < args.experts; e += kThreads) {
    shares[e] = total == 0 ? 0.0f : static_cast<float>(static_cast<double>(counts[e]) / total);
  }
  __syncthreads();
}

/// Of one token.
struct Balance {
  float score_sum;  ///< sigmoid: what scores are divided by
  float loss;       ///< sum of shares times probabilities
};

template <int kPerLane>
__device__ Balance balance_of(const TokenLogits<kPerLane>& token, const RowExp& row, bool sigmoids,
                              const float* shares) {
  float sum = 0;
  float weighted = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (token.has(i)) {
      const float score = sigmoids ? sigmoid(token.logits[i]) : row.softmax(token.logits[i]);
      sum += score;
      weighted += shares[token.expert(i)] * score;
    }
  }
  sum = warp_sum(sum) + kTinySum;
  weighted = warp_sum(weighted);
  return {sum, sigmoids ? weighted / sum : weighted};
}

template <int kPerLane>
__global__ void __launch_bounds__(kThreads) router_losses_kernel(RouterLossArgs args) {
  extern __shared__ float shares[];
  __shared__ double sums[kNumLosses][kWarpSize];
  const int64_t begin = int64_t{blockIdx.x} * kTokensPerBlock;
  const int64_t end = min(args.tokens, begin + kTokensPerBlock);
  double losses[kNumLosses] = {0, 0};  // all lanes of a warp have the same
  for (TokenRun run = token_run(args, begin, end); run.begin < end;
       run = token_run(args, run.end, end)) {
    fill_shares(args, run.sequence, shares);
    for (int64_t t = run.begin + threadIdx.x / kWarpSize; t < run.end; t += kWarps) {
      const TokenLogits<kPerLane> token(args.logits + t * args.experts, args.experts);
      const RowExp row = token.row_exp();
      const float lse = row.log_sum();
      losses[0] += static_cast<double>(balance_of(token, row, args.sigmoid, shares).loss);
      losses[1] += static_cast<double>(lse * lse);
    }
  }
  const bool is_first_lane = threadIdx.x % kWarpSize == 0;
#pragma unroll
  for (int i = 0; i < kNumLosses; ++i) {
    const double sum = block_sum(is_first_lane ? losses[i] : 0.0, sums[i]);
    if (threadIdx.x == 0) {
      args.partials[int64_t{blockIdx.x} * kNumLosses + i] = sum;
    }
  }
}

struct LossSumArgs {
  const double* partials = nullptr;   // f64 [num_partials,2]
  const float* loss_scale = nullptr;  // f32 [1]
  float* losses = nullptr;            // f32 [2]
  int num_partials = 0;
  double factors[kNumLosses] = {};
};

__global__ void __launch_bounds__(kThreads) loss_sum_kernel(LossSumArgs args) {
  __shared__ double sums[kNumLosses][kWarpSize];
#pragma unroll
  for (int i = 0; i < kNumLosses; ++i) {
    double sum = 0;
    for (int p = static_cast<int>(threadIdx.x); p < args.num_partials; p += kThreads) {
      sum += args.partials[int64_t{p} * kNumLosses + i];
    }
    sum = block_sum(sum, sums[i]);
    if (threadIdx.x == 0) {
      args.losses[i] =
          static_cast<float>(static_cast<double>(*args.loss_scale) * args.factors[i] * sum);
    }
  }
}

template <int kPerLane>
__device__ void losses_backward_token(const RouterLossArgs& args, int64_t t, const float* shares) {
  const float balance_factor = *args.loss_scale * args.balance;
  const float z_factor = *args.loss_scale * args.z;
  const TokenLogits<kPerLane> token(args.logits + t * args.experts, args.experts);
  const RowExp row = token.row_exp();
  const Balance balance = balance_of(token, row, args.sigmoid, shares);
  const float z_slope = z_factor == 0.0f ? 0.0f : 2.0f * z_factor * row.log_sum();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (token.has(i)) {
      const float p = row.softmax(token.logits[i]);
      const float s = args.sigmoid ? sigmoid(token.logits[i]) : p;
      const float slope = args.sigmoid ? s * (1.0f - s) / balance.score_sum : p;
      args.d_logits[t * args.experts + token.expert(i)] =
          balance_factor * slope * (shares[token.expert(i)] - balance.loss) + z_slope * p;
    }
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(kThreads) router_losses_backward_kernel(RouterLossArgs args) {
  extern __shared__ float shares[];
  const int64_t begin = int64_t{blockIdx.x} * kTokensPerBlock;
  const int64_t end = min(args.tokens, begin + kTokensPerBlock);
  for (TokenRun run = token_run(args, begin, end); run.begin < end;
       run = token_run(args, run.end, end)) {
    fill_shares(args, run.sequence, shares);
    for (int64_t t = run.begin + threadIdx.x / kWarpSize; t < run.end; t += kWarps) {
      losses_backward_token<kPerLane>(args, t, shares);
    }
  }
}

RouterLossArgs loss_args(const OpSpec& spec, const RouterLossAttributes& attributes) {
  const Shape& logits = spec.operands[0].shape;
  check(logits[1] <= kMaxRouterExperts, "op {}: {} experts; its kernel holds up to {} in registers",
        spec.op, logits[1], kMaxRouterExperts);
  RouterLossArgs args;
  args.tokens = logits[0];
  args.rows = attributes.rows;
  args.experts = static_cast<int>(logits[1]);
  args.sigmoid = attributes.sigmoid;
  args.balance = static_cast<float>(attributes.balance * static_cast<double>(logits[1]));
  args.z = static_cast<float>(attributes.z);
  return args;
}

void set_inputs(RouterLossArgs& o, const CudaKernelArgs& args) {
  o.logits = args.data<const float>(0);
  o.counts = args.data<const float>(1);
  o.loss_scale = args.data<const float>(2);
}

size_t shares_bytes(const RouterLossArgs& args) {
  return static_cast<size_t>(args.experts) * sizeof(float);
}

/// Of a rank that does not add: all bits 0.
CudaKernel zeros(const OperandSpec& operand) {
  const size_t bytes = static_cast<size_t>(operand.shape.num_elems()) * sizeof(float);
  return {.launch = [bytes](const CudaKernelArgs& args) {
    BRAID_CUDA_CHECK(cudaMemsetAsync(args.operands[3], 0, bytes, args.stream));
  }};
}

}  // namespace

CudaKernel make_cuda_router_losses(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<RouterLossAttributes>(spec);
  if (!attributes.adds) {
    return zeros(spec.operands[3]);
  }
  const RouterLossArgs shape = loss_args(spec, attributes);
  LossSumArgs sum;
  sum.num_partials = static_cast<int>(ceil_div(shape.tokens, kTokensPerBlock));
  sum.factors[0] = attributes.balance * static_cast<double>(shape.experts);
  sum.factors[1] = attributes.z;
  return {.launch =
              [shape, sum](const CudaKernelArgs& args) {
                RouterLossArgs o = shape;
                set_inputs(o, args);
                o.partials = reinterpret_cast<double*>(args.scratch);
                dispatch_experts(o.experts, [&]<int kPerLane>() {
                  router_losses_kernel<kPerLane>
                      <<<grid_of(sum.num_partials), kThreads, shares_bytes(o), args.stream>>>(o);
                });
                LossSumArgs s = sum;
                s.partials = o.partials;
                s.loss_scale = o.loss_scale;
                s.losses = args.data<float>(3);
                loss_sum_kernel<<<1, kThreads, 0, args.stream>>>(s);
                BRAID_CUDA_CHECK(cudaGetLastError());
              },
          .scratch_bytes = router_losses_scratch_bytes(shape.tokens)};
}

CudaKernel make_cuda_router_losses_backward(const OpSpec& spec, CudaContext& /*context*/) {
  const auto attributes = attributes_of<RouterLossAttributes>(spec);
  if (!attributes.adds) {
    return zeros(spec.operands[3]);
  }
  return {.launch = [shape = loss_args(spec, attributes)](const CudaKernelArgs& args) {
    RouterLossArgs o = shape;
    set_inputs(o, args);
    o.d_logits = args.data<float>(3);
    dispatch_experts(o.experts, [&]<int kPerLane>() {
      router_losses_backward_kernel<kPerLane><<<grid_of(ceil_div(o.tokens, kTokensPerBlock)),
                                                kThreads, shares_bytes(o), args.stream>>>(o);
    });
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace braid
