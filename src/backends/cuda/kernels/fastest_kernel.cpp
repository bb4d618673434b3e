// Kernels are timed under the conditions of a run: back to back in a CUDA graph, on operands that
// do not stay in the L2 cache between launches, and in turns.
//
// Large products reach the power limit of the device, which lowers the clock within tens of
// milliseconds. In short turns all kernels share one clock, so kernels that need fewer cycles win
// although they may draw more power. Therefore each of the best kernels then runs alone until the
// clock has settled at the value that its own power allows.
#include "backends/cuda/kernels/fastest_kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>

#include "backends/cuda/algorithm_cache.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/kernels/random_fill.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr double kMeasuredNs = 4e6;  ///< per timing; the total is long enough to heat up the device
constexpr int kMaxLaunches = 100;
constexpr int kRounds = 9;
constexpr size_t kMaxFinalists = 6;
constexpr double kFinalistSlack = 1.08;
constexpr double kPowerLimitedFlops = 1e11;  ///< smaller products stay below the limit
constexpr double kSettleNs = 60e6;           ///< until the clock follows the power drawn
constexpr double kSteadyNs = 40e6;
constexpr int kSteadyRounds = 3;
constexpr double kSameTime = 1.005;  ///< medians of one kernel differ by this much between runs
constexpr size_t kColdBytes = size_t{160} << 20;  ///< several times the L2 of an H200 (60 MB)
constexpr size_t kMaxSets = 16;

struct FreeDevice {
  void operator()(std::byte* data) const { ignore_error(cudaFree(data)); }
};
struct DestroyStream {
  void operator()(cudaStream_t stream) const { ignore_error(cudaStreamDestroy(stream)); }
};
struct DestroyEvent {
  void operator()(cudaEvent_t event) const { ignore_error(cudaEventDestroy(event)); }
};
struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { ignore_error(cudaGraphDestroy(graph)); }
};
struct DestroyGraphExec {
  void operator()(cudaGraphExec_t graph) const { ignore_error(cudaGraphExecDestroy(graph)); }
};
template <class Handle, class Destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;
using DeviceBytes = std::unique_ptr<std::byte, FreeDevice>;

DeviceBytes allocate(size_t bytes) {
  void* data = nullptr;
  BRAID_CUDA_CHECK(cudaMalloc(&data, bytes));
  return DeviceBytes(static_cast<std::byte*>(data));
}

Owned<cudaStream_t, DestroyStream> make_stream() {
  cudaStream_t stream = nullptr;
  BRAID_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Owned<cudaStream_t, DestroyStream>(stream);
}

Owned<cudaEvent_t, DestroyEvent> make_event() {
  cudaEvent_t event = nullptr;
  BRAID_CUDA_CHECK(cudaEventCreate(&event));
  return Owned<cudaEvent_t, DestroyEvent>(event);
}

size_t aligned_bytes(const TimedWork::Operand& operand) {
  return (static_cast<size_t>(operand.num_elems) * dtype_bytes(operand.dtype) + 255) / 256 * 256;
}

/// The test bench: enough copies of the operands to exceed L2, a stream, a clock.
class Stopwatch {
 public:
  Stopwatch(const TimedWork& work, size_t scratch_bytes)
      : scratch_(allocate(std::max<size_t>(scratch_bytes, 256))),
        stream_(make_stream()),
        begin_(make_event()),
        end_(make_event()) {
    size_t set_bytes = 0;
    for (const TimedWork::Operand& operand : work.operands) {
      set_bytes += aligned_bytes(operand);
    }
    const size_t num_sets = std::clamp<size_t>(kColdBytes / set_bytes, 1, kMaxSets);
    memory_ = allocate(num_sets * set_bytes);
    fill(work, num_sets);
    // Rough rates of the device in operations and bytes per ns; f32 without tensor cores is slower.
    const double per_ns = work.operands.front().dtype == DType::kF32 ? 4e4 : 6e5;
    const double guess_ns = work.flops / per_ns + static_cast<double>(set_bytes) / 4e3 + 2e3;
    num_launches_ = static_cast<int>(std::clamp(kMeasuredNs / guess_ns, 2.0, double{kMaxLaunches}));
  }

  /// Launches of one kernel as a graph; the first replay warms up.
  class Runner {
   public:
    Runner(Stopwatch& watch, const CudaKernel& kernel) : watch_(&watch) {
      cudaStream_t stream = watch.stream_.get();
      cudaGraph_t graph = nullptr;
      watch.launch(0, kernel);  // loads the kernel's module, which a capture must not do
      BRAID_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (int i = 0; i < watch.num_launches_; ++i) {
        watch.launch(static_cast<size_t>(i) % watch.sets_.size(), kernel);
      }
      BRAID_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
      const Owned<cudaGraph_t, DestroyGraph> owned(graph);
      cudaGraphExec_t executable = nullptr;
      BRAID_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
      graph_.reset(executable);
      time_ns();
    }

    double time_ns() {
      cudaStream_t stream = watch_->stream_.get();
      BRAID_CUDA_CHECK(cudaEventRecord(watch_->begin_.get(), stream));
      BRAID_CUDA_CHECK(cudaGraphLaunch(graph_.get(), stream));
      BRAID_CUDA_CHECK(cudaEventRecord(watch_->end_.get(), stream));
      BRAID_CUDA_CHECK(cudaEventSynchronize(watch_->end_.get()));
      float ms = 0;
      BRAID_CUDA_CHECK(cudaEventElapsedTime(&ms, watch_->begin_.get(), watch_->end_.get()));
      return static_cast<double>(ms) * 1e6 / watch_->num_launches_;
    }

    /// The mean under its own steady load.
    double steady_ns() {
      run_for(kSettleNs);
      return run_for(kSteadyNs);
    }

   private:
    double run_for(double wanted_ns) {
      double total_ns = 0;
      int replays = 0;
      for (; total_ns < wanted_ns; ++replays) {
        total_ns += time_ns() * watch_->num_launches_;
      }
      return total_ns / replays / watch_->num_launches_;
    }

    Stopwatch* watch_;
    Owned<cudaGraphExec_t, DestroyGraphExec> graph_;
  };

 private:
  void fill(const TimedWork& work, size_t num_sets) {
    std::byte* next = memory_.get();
    uint32_t seed = 0;
    for (size_t set = 0; set < num_sets; ++set) {
      std::vector<std::byte*>& operands = sets_.emplace_back();
      for (const TimedWork::Operand& operand : work.operands) {
        fill(next, operand, seed++);
        operands.push_back(next);
        next += aligned_bytes(operand);
      }
    }
  }

  void fill(std::byte* to, const TimedWork::Operand& operand, uint32_t seed) {
    if (operand.integers.empty()) {
      random_fill(to, operand.num_elems, operand.dtype, seed, stream_.get());
      return;
    }
    const auto bytes = std::as_bytes(std::span(operand.integers));
    BRAID_CUDA_CHECK(
        cudaMemcpyAsync(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_.get()));
  }

  void launch(size_t set, const CudaKernel& kernel) {
    kernel.launch({.operands = sets_[set], .scratch = scratch_.get(), .stream = stream_.get()});
  }

  DeviceBytes scratch_;
  DeviceBytes memory_;
  std::vector<std::vector<std::byte*>> sets_;  ///< of operands, in `memory_`
  Owned<cudaStream_t, DestroyStream> stream_;
  Owned<cudaEvent_t, DestroyEvent> begin_;
  Owned<cudaEvent_t, DestroyEvent> end_;
  int num_launches_ = 0;
};

double median(std::vector<double> list) {
  const auto middle = list.begin() + static_cast<ptrdiff_t>(list.size() / 2);
  std::nth_element(list.begin(), middle, list.end());
  return *middle;
}

/// Candidates that a single timing does not exclude, in the same order.
std::vector<size_t> finalists_of(const std::vector<double>& times) {
  std::vector<size_t> order(times.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return times[a] < times[b]; });
  const double limit = times[order.front()] * kFinalistSlack;
  order.erase(std::find_if(order.begin(), order.end(), [&](size_t i) { return times[i] > limit; }),
              order.end());
  order.resize(std::min(order.size(), kMaxFinalists));
  std::sort(order.begin(), order.end());
  return order;
}

size_t largest_scratch(const std::vector<NamedKernel>& candidates) {
  size_t bytes = 0;
  for (const NamedKernel& candidate : candidates) {
    bytes = std::max(bytes, candidate.kernel.scratch_bytes);
  }
  return bytes;
}

/// The first of the candidates that cannot be distinguished, so that the choice seldom changes
/// between runs.
size_t index_of_fastest(const std::vector<NamedKernel>& candidates, const TimedWork& work) {
  if (candidates.size() == 1) {
    return 0;
  }
  Stopwatch watch(work, largest_scratch(candidates));
  std::vector<Stopwatch::Runner> runners;
  std::vector<double> once;
  for (const NamedKernel& candidate : candidates) {
    once.push_back(runners.emplace_back(watch, candidate.kernel).time_ns());
  }
  const std::vector<size_t> finalists = finalists_of(once);
  const bool limited_by_power = work.flops >= kPowerLimitedFlops;
  std::vector<std::vector<double>> times(finalists.size());
  for (int round = 0; round < (limited_by_power ? kSteadyRounds : kRounds); ++round) {
    for (size_t i = 0; i < finalists.size(); ++i) {
      Stopwatch::Runner& runner = runners[finalists[i]];
      times[i].push_back(limited_by_power ? runner.steady_ns() : runner.time_ns());
    }
  }
  std::vector<double> medians(times.size());
  std::transform(times.begin(), times.end(), medians.begin(), median);
  const double limit = *std::min_element(medians.begin(), medians.end()) * kSameTime;
  const auto chosen =
      std::find_if(medians.begin(), medians.end(), [&](double ns) { return ns <= limit; });
  return finalists[static_cast<size_t>(chosen - medians.begin())];
}

}  // namespace

CudaKernel fastest_kernel(const KernelChoice& choice, CudaContext& context) {
  if (const auto name = context.algorithms().find(choice.key)) {
    if (auto kernel = choice.recall(*name)) {
      return *std::move(kernel);
    }
  }
  std::vector<NamedKernel> candidates = choice.candidates();
  NamedKernel& chosen = candidates[index_of_fastest(candidates, choice.work)];
  context.algorithms().store(choice.key, chosen.name);
  return std::move(chosen.kernel);
}

std::string device_text(const CudaContext& context) {
  cudaDeviceProp properties;
  BRAID_CUDA_CHECK(cudaGetDeviceProperties(&properties, context.device()));
  return fmt::format("{}, {} multiprocessors", properties.name, context.num_sms());
}

}  // namespace braid
