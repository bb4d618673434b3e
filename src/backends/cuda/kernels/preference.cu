#include "ops/preference.h"

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/block_sum.cuh"
#include "backends/cuda/kernels/factories.h"
#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/row_statistics.cuh"
#include "ops/attributes.h"
#include "ops/pair_loss.h"

// One block per sequence merges the statistics of its rows and sums their losses in f64, in an
// order that depends only on the sizes. Then one block compares the pairs; a step has few of them.
namespace braid {
namespace {

constexpr int kSequenceThreads = 512;
constexpr int kPairThreads = 128;

struct SequenceArgs {
  const float* stats = nullptr;     // f32 [ranks*rows,3]
  const int32_t* labels = nullptr;  // [rows]
  float* losses = nullptr;          // f32 [rows / rows_of_sequence]
  float* lse = nullptr;             // f32 [rows]
  int64_t rows = 0;
  int64_t rows_of_sequence = 0;
  int64_t ranks = 0;
};

__global__ void __launch_bounds__(kSequenceThreads) sequence_kernel(SequenceArgs args) {
  __shared__ double shared[kWarpSize];
  const int64_t begin = int64_t{blockIdx.x} * args.rows_of_sequence;
  double loss = 0;
  for (int64_t row = begin + threadIdx.x; row < begin + args.rows_of_sequence;
       row += kSequenceThreads) {
    const MergedRow merged = merge_row(args.stats, args.rows, args.ranks, row);
    args.lse[row] = merged.lse;
    loss += args.labels[row] < 0 ? 0 : static_cast<double>(merged.lse) - merged.of_label;
  }
  loss = block_sum(loss, shared);
  if (threadIdx.x == 0) {
    args.losses[blockIdx.x] = static_cast<float>(loss);
  }
}

struct PairArgs {
  const float* losses = nullptr;     // f32 [2 pairs]
  const float* reference = nullptr;  // f32 [2 pairs,2]
  float* loss = nullptr;             // f32 [1]
  float* figures = nullptr;          // f32 [5]
  float* d_losses = nullptr;         // f32 [2 pairs]
  int64_t pairs = 0;                 // of the microbatch
  double scale = 0;                  // 1 / pairs of the step
  double counted = 0;                // the same, or 0 if another rank counts
  double beta = 0;
  double label_smoothing = 0;
  PreferenceKind kind = PreferenceKind::kDpo;
};

__global__ void __launch_bounds__(kPairThreads) pair_kernel(PairArgs args) {
  __shared__ double shared[kWarpSize];
  double sums[1 + kPreferenceFigures] = {};
  for (int64_t pair = threadIdx.x; pair < args.pairs; pair += kPairThreads) {
    const PairFigures one =
        pair_figures(args.kind, args.beta, args.label_smoothing, args.losses + 2 * pair,
                     args.reference + 2 * pair * kReferenceColumns);
    sums[0] += one.loss;
    for (int64_t i = 0; i < kPreferenceFigures; ++i) {
      sums[1 + i] += one.figures[i];
    }
    args.d_losses[2 * pair] = static_cast<float>(args.scale * one.d_chosen);
    args.d_losses[2 * pair + 1] = static_cast<float>(args.scale * one.d_rejected);
  }
  for (int64_t i = 0; i < 1 + kPreferenceFigures; ++i) {
    const double sum = block_sum(sums[i], shared);
    __syncthreads();  // before `shared` is written again
    if (threadIdx.x == 0) {
      *(i == 0 ? args.loss : args.figures + i - 1) = static_cast<float>(args.counted * sum);
    }
  }
}

void check_is_f32(const OpSpec& spec) {
  check(spec.operands[0].dtype == DType::kF32, "op {}: no CUDA kernel for {}", spec.op,
        dtype_name(spec.operands[0].dtype));
}

}  // namespace

CudaKernel make_cuda_sequence_losses(const OpSpec& spec, CudaContext& /*context*/) {
  check_is_f32(spec);
  const int64_t rows = spec.operands[1].shape[0];
  const int64_t ranks = spec.operands[0].shape[0] / rows;
  const int64_t sequences = attributes_of<SequenceLossesAttributes>(spec).sequences;
  return {.launch = [=](const CudaKernelArgs& args) {
    sequence_kernel<<<grid_of(sequences), kSequenceThreads, 0, args.stream>>>(
        {.stats = args.data<const float>(0),
         .labels = args.data<const int32_t>(1),
         .losses = args.data<float>(2),
         .lse = args.data<float>(3),
         .rows = rows,
         .rows_of_sequence = rows / sequences,
         .ranks = ranks});
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

CudaKernel make_cuda_preference_loss(const OpSpec& spec, CudaContext& /*context*/) {
  check_is_f32(spec);
  const auto attributes = attributes_of<PreferenceLossAttributes>(spec);
  const int64_t pairs = spec.operands[0].shape[0] / 2;
  const double scale = 1.0 / static_cast<double>(attributes.pairs);
  return {.launch = [=, kind = attributes.preference_kind()](const CudaKernelArgs& args) {
    pair_kernel<<<1, kPairThreads, 0, args.stream>>>({.losses = args.data<const float>(0),
                                                      .reference = args.data<const float>(1),
                                                      .loss = args.data<float>(2),
                                                      .figures = args.data<float>(3),
                                                      .d_losses = args.data<float>(4),
                                                      .pairs = pairs,
                                                      .scale = scale,
                                                      .counted = attributes.counts ? scale : 0.0,
                                                      .beta = attributes.beta,
                                                      .label_smoothing = attributes.label_smoothing,
                                                      .kind = kind});
    BRAID_CUDA_CHECK(cudaGetLastError());
  }};
}

}  // namespace braid
