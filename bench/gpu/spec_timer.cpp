#include "spec_timer.h"

#include <algorithm>
#include <array>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/random_fill.h"
#include "ops/integer_values.h"

namespace braid {
namespace {

constexpr int kReplays = 9;
constexpr double kReplayNs = 20e6;
constexpr double kSettleNs = 60e6;  // until the clock follows the power drawn
constexpr double kSteadyNs = 60e6;
constexpr size_t kMaxSets = 8;
constexpr size_t kColdBytes = size_t{256} << 20;  // four times the L2 of an H200
constexpr size_t kBlockElems = size_t{1} << 20;
constexpr int64_t kArenaBytes = 256;

size_t bytes_of(const OperandSpec& operand) {
  return static_cast<size_t>(operand.shape.num_elems()) * dtype_bytes(operand.dtype);
}

DeviceArena allocate(size_t bytes) {
  const int64_t rounded = (static_cast<int64_t>(bytes) + kArenaBytes - 1) / kArenaBytes;
  return {std::max<int64_t>(rounded, 1) * kArenaBytes, "an operand of a benchmark"};
}

/// Uploads a block, then copies what is already there until `bytes` are full.
template <class T>
void replicate(std::byte* to, size_t bytes, const std::vector<T>& block) {
  size_t done = std::min(bytes, block.size() * sizeof(T));
  BRAID_CUDA_CHECK(cudaMemcpy(to, block.data(), done, cudaMemcpyHostToDevice));
  while (done < bytes) {
    const size_t more = std::min(done, bytes - done);
    BRAID_CUDA_CHECK(cudaMemcpy(to + done, to, more, cudaMemcpyDeviceToDevice));
    done += more;
  }
}

template <class T, class Distribution>
std::vector<T> random_block(const OperandSpec& spec, Distribution distribution,
                            std::mt19937& random) {
  std::vector<T> block(std::min(kBlockElems, static_cast<size_t>(spec.shape.num_elems())));
  for (T& value : block) {
    value = static_cast<T>(distribution(random));
  }
  return block;
}

/// Output and statistics of attention belong to its input: with others, probabilities overflow.
OpSpec forward_of_attention_backward(const OpSpec& backward) {
  OpSpec spec{"attention",
              backward.attributes,
              {backward.operands[0], backward.operands[1], backward.operands[2]}};
  spec.operands[1].access = Access::kWrite;
  spec.operands[2].access = Access::kWrite;
  return spec;
}

/// Launches of one kernel as a graph, and its replays.
class Replays {
 public:
  Replays(const CudaKernel& kernel, const std::vector<RandomOperands>& sets, cudaStream_t stream)
      : kernel_(kernel), sets_(sets), stream_(stream), scratch_(allocate(kernel.scratch_bytes)) {
    launch(0);  // libraries set themselves up
    BRAID_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    launch(1);
    num_launches_ = static_cast<size_t>(std::clamp(kReplayNs / elapsed_ns(), 2.0, 400.0));
    CudaCapture capture(stream_);
    for (size_t i = 0; i < num_launches_; ++i) {
      launch(i);
    }
    graph_ = CudaGraphExec(capture.end(), stream_);
    replay_ns();
  }

  /// Of one launch.
  double replay_ns() {
    BRAID_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    BRAID_CUDA_CHECK(cudaGraphLaunch(graph_, stream_));
    return elapsed_ns() / static_cast<double>(num_launches_);
  }

  /// The mean over replays that take `wanted_ns` together.
  double mean_ns(double wanted_ns) {
    double total_ns = 0;
    int replays = 0;
    for (; total_ns < wanted_ns; ++replays) {
      total_ns += replay_ns() * static_cast<double>(num_launches_);
    }
    return total_ns / replays / static_cast<double>(num_launches_);
  }

 private:
  void launch(size_t i) {
    kernel_.launch({.operands = sets_[i % sets_.size()].operands(),
                    .scratch = scratch_.data(),
                    .stream = stream_});
  }

  double elapsed_ns() {
    BRAID_CUDA_CHECK(cudaEventRecord(end_, stream_));
    BRAID_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0;
    BRAID_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return static_cast<double>(ms) * 1e6;
  }

  const CudaKernel& kernel_;
  const std::vector<RandomOperands>& sets_;
  cudaStream_t stream_;
  DeviceArena scratch_;
  CudaEvent begin_{EventTiming::kTimed};
  CudaEvent end_{EventTiming::kTimed};
  size_t num_launches_ = 0;
  CudaGraphExec graph_;
};

}  // namespace

RandomOperands::RandomOperands(const OpSpec& spec, int64_t vocabulary, uint32_t seed,
                               cudaStream_t stream)
    : random_(seed) {
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const OperandSpec& operand = spec.operands[i];
    memory_.push_back(allocate(bytes_of(operand)));
    operands_.push_back(memory_.back().data());
    if (operand.dtype == DType::kI32 && integer_need(spec, i).rule == IntegerRule::kOffsets) {
      replicate(operands_.back(), bytes_of(operand), valid_integers(spec, i));
    } else {
      fill(operand, operands_.back(), vocabulary, stream);
    }
  }
}

void RandomOperands::fill(const OperandSpec& spec, std::byte* to, int64_t vocabulary,
                          cudaStream_t stream) {
  const std::uniform_real_distribution<float> positive(0.05f, 1.0f);
  if (spec.dtype == DType::kBF16 || dtype_bytes(spec.dtype) == 1) {
    random_fill(to, spec.shape.num_elems(), spec.dtype, static_cast<uint32_t>(random_()), stream);
  } else if (spec.dtype == DType::kI32) {
    const std::uniform_int_distribution<int32_t> id(0, static_cast<int32_t>(vocabulary - 1));
    replicate(to, bytes_of(spec), random_block<int32_t>(spec, id, random_));
  } else if (spec.dtype == DType::kF32) {
    replicate(to, bytes_of(spec), random_block<float>(spec, positive, random_));
  } else {
    replicate(to, bytes_of(spec), random_block<double>(spec, positive, random_));
  }
}

SpecTimer::SpecTimer(CudaContext& context, int64_t vocabulary)
    : context_(context), vocabulary_(vocabulary), stream_(0) {}

std::vector<RandomOperands> SpecTimer::make_sets(const OpSpec& spec) {
  size_t set_bytes = 1;
  for (const OperandSpec& operand : spec.operands) {
    set_bytes += bytes_of(operand);
  }
  const size_t num_sets = std::clamp<size_t>(kColdBytes / set_bytes, 1, kMaxSets);
  std::vector<RandomOperands> sets;
  for (size_t i = 0; i < num_sets; ++i) {
    sets.emplace_back(spec, vocabulary_, static_cast<uint32_t>(i + 1), stream_);
  }
  if (spec.op == "attention_backward") {
    const CudaKernel forward = make_cuda_kernel(forward_of_attention_backward(spec), context_);
    const DeviceArena scratch = allocate(forward.scratch_bytes);
    for (const RandomOperands& set : sets) {
      forward.launch(
          {.operands = set.operands().first(3), .scratch = scratch.data(), .stream = stream_});
    }
  }
  BRAID_CUDA_CHECK(cudaStreamSynchronize(stream_));
  return sets;
}

SpecTiming SpecTimer::time(const OpSpec& spec) {
  return time(spec, make_cuda_kernel(spec, context_));
}

SpecTiming SpecTimer::time(const OpSpec& spec, const CudaKernel& kernel) {
  const std::vector<RandomOperands> sets = make_sets(spec);
  Replays replays(kernel, sets, stream_);
  std::array<double, kReplays> times{};
  for (double& ns : times) {
    ns = replays.replay_ns();
  }
  std::sort(times.begin(), times.end());
  const double median = times[kReplays / 2];
  return {.ns = median,
          .spread = (times.back() - times.front()) / median,
          .scratch_bytes = kernel.scratch_bytes};
}

double SpecTimer::steady_ns(const OpSpec& spec) {
  const std::vector<RandomOperands> sets = make_sets(spec);
  const CudaKernel kernel = make_cuda_kernel(spec, context_);
  Replays replays(kernel, sets, stream_);
  replays.mean_ns(kSettleNs);
  return replays.mean_ns(kSteadyNs);
}

double SpecTimer::copy_bytes_per_s(int64_t bytes) {
  const Shape elems{bytes / 2};
  const OpSpec spec{"copy",
                    {},
                    {{.dtype = DType::kBF16, .access = Access::kRead, .shape = elems},
                     {.dtype = DType::kBF16, .access = Access::kWrite, .shape = elems}}};
  return 2e9 * static_cast<double>(elems.num_elems()) * 2.0 / time(spec).ns;
}

}  // namespace braid
