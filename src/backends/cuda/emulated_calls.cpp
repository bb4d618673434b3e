#include "backends/cuda/emulated_calls.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/pinned_arena.h"
#include "backends/step_progress.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr int64_t kStockBytes = int64_t{64} << 20;
constexpr int64_t kSmallCopyBytes = int64_t{256} << 10;

void copy(std::byte* to, const std::byte* from, int64_t num_bytes, cudaStream_t stream) {
  BRAID_CUDA_CHECK(
      cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes), cudaMemcpyDefault, stream));
}

/// Of one of several pieces of work that follow each other on a stream.
double mean_ns(const CudaStream& stream, const std::function<void()>& enqueue) {
  constexpr int kTimes = 20;
  constexpr double kNsPerMs = 1e6;
  const CudaEvent begin(EventTiming::kTimed);
  const CudaEvent end(EventTiming::kTimed);
  enqueue();
  BRAID_CUDA_CHECK(cudaEventRecord(begin, stream));
  for (int i = 0; i < kTimes; ++i) {
    enqueue();
  }
  BRAID_CUDA_CHECK(cudaEventRecord(end, stream));
  BRAID_CUDA_CHECK(cudaEventSynchronize(end));
  float ms = 0;
  BRAID_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
  return ms * kNsPerMs / kTimes;
}

/// What a copy of some kind takes.
struct CopyPrice {
  double start_ns = 0;
  double ns_per_byte = 0;

  double ns(int64_t num_bytes) const {
    return start_ns + ns_per_byte * static_cast<double>(num_bytes);
  }
  /// The bytes of a copy that takes so long; 0 if none is so short.
  int64_t bytes_of(double ns) const {
    return static_cast<int64_t>(std::max(0.0, (ns - start_ns) / ns_per_byte));
  }
};

CopyPrice measure_copy(std::byte* to, const std::byte* from, const CudaStream& stream) {
  const auto time = [&](int64_t num_bytes) {
    return mean_ns(stream, [&] { copy(to, from, num_bytes, stream); });
  };
  const double small = time(kSmallCopyBytes);
  const double large = time(kStockBytes);
  CopyPrice price;
  price.ns_per_byte = (large - small) / static_cast<double>(kStockBytes - kSmallCopyBytes);
  check(price.ns_per_byte > 0, "copies of {} and {} bytes take {} and {} ns", kSmallCopyBytes,
        kStockBytes, small, large);
  price.start_ns = std::max(0.0, small - price.ns_per_byte * static_cast<double>(kSmallCopyBytes));
  return price;
}

}  // namespace

struct EmulatedCalls::State {
  DeviceArena stock;
  DeviceArena sink;  // of what takes time
  PinnedArena source;
  CopyPrice local;
  CopyPrice link;
  std::map<std::pair<size_t, TaskId>, CudaKernel> kernels;

  State()
      : stock(kStockBytes, "random numbers for emulated ranks"),
        sink(kStockBytes, "bytes of emulated ranks"),
        source(kStockBytes, "bytes of emulated ranks, on the host") {
    const CudaStream stream(0);
    fill_stock({source.data(), static_cast<size_t>(kStockBytes)});
    copy(stock.data(), source.data(), kStockBytes, stream);
    local = measure_copy(sink.data(), stock.data(), stream);
    link = measure_copy(sink.data(), source.data(), stream);
  }

  void enqueue(const CommCall& call, int rank, int64_t duration_ns, cudaStream_t stream) const;
  CudaKernel kernel_of(const Program& program, const Task& task, int64_t duration_ns) const;
};

void EmulatedCalls::State::enqueue(const CommCall& call, int rank, int64_t duration_ns,
                                   cudaStream_t stream) const {
  auto missing_ns = static_cast<double>(duration_ns);
  for (const StandInCopy& part : stand_in_copies(call, rank, kStockBytes)) {
    if (!copies_nothing(part, call)) {
      const std::byte* const from = part.from_stock ? stock.data() : call.send;
      copy(call.recv + part.to_bytes, from + part.from_bytes, part.num_bytes, stream);
      missing_ns -= local.ns(part.num_bytes);
    }
  }
  while (missing_ns > link.start_ns) {
    const int64_t num_bytes = std::min(link.bytes_of(missing_ns), kStockBytes);
    if (num_bytes == 0) {
      break;
    }
    copy(sink.data(), source.data(), num_bytes, stream);
    missing_ns -= link.ns(num_bytes);
  }
}

CudaKernel EmulatedCalls::State::kernel_of(const Program& program, const Task& task,
                                           int64_t duration_ns) const {
  const OpSpec& spec = program.spec(task);
  const Group& group = program.groups[group_of(program, spec)->index()];
  return {.launch =
              [this, &spec, &group, rank = program.rank, duration_ns](const CudaKernelArgs& args) {
                enqueue(make_comm_call(spec, group, args.operands, spec.op), rank, duration_ns,
                        args.stream);
              },
          .scratch_bytes = 0};
}

EmulatedCalls::EmulatedCalls(std::span<const Program> programs, const EmulatedPeers& peers)
    : state_(std::make_unique<State>()) {
  check(peers.task_ns.size() == programs.size(), "{} programs, and durations of {}",
        programs.size(), peers.task_ns.size());
  for (size_t i = 0; i < programs.size(); ++i) {
    const Program& program = programs[i];
    check(peers.task_ns[i].size() == program.tasks.size(), "{} tasks of {}, and durations of {}",
          program.tasks.size(), program.name, peers.task_ns[i].size());
    for (size_t task = 0; task < program.tasks.size(); ++task) {
      if (meets_others(program, program.tasks[task])) {
        state_->kernels.try_emplace(
            {i, TaskId(task)},
            state_->kernel_of(program, program.tasks[task], peers.task_ns[i][task]));
      }
    }
  }
}

EmulatedCalls::~EmulatedCalls() = default;

const CudaKernel* EmulatedCalls::kernel(size_t program, TaskId task) const {
  const auto found = state_->kernels.find({program, task});
  return found == state_->kernels.end() ? nullptr : &found->second;
}

int64_t EmulatedCalls::device_bytes() const {
  return state_->stock.size_bytes() + state_->sink.size_bytes();
}

}  // namespace braid
