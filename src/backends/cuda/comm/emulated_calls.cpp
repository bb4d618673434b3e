#include "backends/cuda/comm/emulated_calls.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "backends/cuda/comm/call_player.h"
#include "backends/cuda/comm/row_exchange.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/pinned_arena.h"
#include "base/errors.h"
#include "ops/meets_others.h"

namespace braid {
namespace {

constexpr int64_t kStockBytes = int64_t{64} << 20;
constexpr size_t kNoTime = 0;  // the wait that measures the overhead of waits

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  BRAID_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

void copy(std::byte* to, const std::byte* from, int64_t num_bytes, cudaStream_t stream) {
  BRAID_CUDA_CHECK(
      cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes), cudaMemcpyDefault, stream));
}

struct TaskDuration {
  size_t program = 0;
  TaskId task;
  int64_t ns = 0;
  int64_t anew_bytes = 0;  // see EmulatedPeers
};

/// The tasks that communicate with other ranks.
std::vector<TaskDuration> durations_of(std::span<const Program> programs,
                                       const EmulatedPeers& peers) {
  check(peers.task_ns.size() == programs.size(), "{} programs, and durations of {}",
        programs.size(), peers.task_ns.size());
  std::vector<TaskDuration> durations;
  for (size_t i = 0; i < programs.size(); ++i) {
    const Program& program = programs[i];
    check(peers.task_ns[i].size() == program.tasks.size(), "{} tasks of {}, and durations of {}",
          program.tasks.size(), program.name, peers.task_ns[i].size());
    for (size_t task = 0; task < program.tasks.size(); ++task) {
      if (meets_others(program, program.tasks[task])) {
        durations.push_back({i, TaskId(task), peers.task_ns[i][task],
                             peers.anew_bytes_of(program, program.tasks[task])});
      }
    }
  }
  return durations;
}

/// The durations of waits, after that of the empty wait.
std::vector<int64_t> waits_of(const std::vector<TaskDuration>& durations) {
  std::vector<int64_t> waits{0};
  for (const TaskDuration& duration : durations) {
    waits.push_back(duration.ns);
  }
  return waits;
}

}  // namespace

struct EmulatedCalls::State {
  std::vector<TaskDuration> durations;  // waits number 1, 2, ...
  std::map<std::pair<size_t, TaskId>, CudaKernel> kernels;
  DeviceArena stock;
  CallPlayer player;

  explicit State(std::vector<TaskDuration> given)
      : durations(std::move(given)),
        stock(kStockBytes, "random numbers for emulated ranks"),
        player(waits_of(durations)) {
    fill();
    measure_overhead();
  }

  void fill() const;
  void measure_overhead();
  void enqueue_wait(size_t wait, cudaStream_t stream, const std::vector<StandInCopy>& copies,
                    const CommCall& call);
  void enqueue_exchange(size_t wait, cudaStream_t stream, const CommCall& call, size_t member);
  CudaKernel kernel_of(const Program& program, const TaskDuration& duration, size_t wait);
};

void EmulatedCalls::State::fill() const {
  const PinnedArena numbers(kStockBytes, "random numbers for emulated ranks, on the host");
  fill_stock({numbers.data(), static_cast<size_t>(kStockBytes)});
  const CudaStream stream(0);
  copy(stock.data(), numbers.data(), kStockBytes, stream);
  BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
}

/// Takes the minimum of several means: a host thread that had no core for a while distorts a mean.
void EmulatedCalls::State::measure_overhead() {
  constexpr int kTimes = 20;
  constexpr int kMeans = 10;
  constexpr double kNsPerMs = 1e6;
  const CudaStream stream(0);
  const CudaEvent begin(EventTiming::kTimed);
  const CudaEvent end(EventTiming::kTimed);
  float least_ms = std::numeric_limits<float>::max();
  for (int mean = 0; mean < kMeans; ++mean) {
    BRAID_CUDA_CHECK(cudaEventRecord(begin, stream));
    for (int i = 0; i < kTimes; ++i) {
      enqueue_wait(kNoTime, stream, {}, {});
    }
    BRAID_CUDA_CHECK(cudaEventRecord(end, stream));
    BRAID_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    BRAID_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    least_ms = std::min(least_ms, ms);
  }
  player.set_overhead(static_cast<int64_t>(least_ms * kNsPerMs / kTimes));
}

void EmulatedCalls::State::enqueue_wait(size_t wait, cudaStream_t stream,
                                        const std::vector<StandInCopy>& copies,
                                        const CommCall& call) {
  player.enqueue_begin(wait, stream);
  for (const StandInCopy& part : copies) {
    if (!copies_nothing(part, call)) {
      const std::byte* const from = part.from_stock ? stock.data() : call.send;
      copy(call.recv + part.to_bytes, from + part.from_bytes, part.num_bytes, stream);
    }
  }
  player.enqueue_end(wait, stream);
}

/// In every step: rows must fit the offsets of the step.
void EmulatedCalls::State::enqueue_exchange(size_t wait, cudaStream_t stream, const CommCall& call,
                                            size_t member) {
  player.enqueue_begin(wait, stream);
  launch_emulated_row_exchange(call, member, stream);
  player.enqueue_end(wait, stream);
}

CudaKernel EmulatedCalls::State::kernel_of(const Program& program, const TaskDuration& duration,
                                           size_t wait) {
  const OpSpec& spec = program.spec(program.tasks[duration.task.index()]);
  const Group& group = program.groups[group_of(program, spec)->index()];
  return {.launch =
              [this, &spec, &group, rank = program.rank, wait,
               anew_bytes = duration.anew_bytes](const CudaKernelArgs& args) {
                const CommCall call = make_comm_call(spec, group, args.operands, spec.op);
                if (call.exchanges_rows()) {
                  return enqueue_exchange(wait, args.stream, call, check_comm_call(call, rank));
                }
                const bool fills = call.result_bytes() <= anew_bytes || !is_captured(args.stream);
                enqueue_wait(
                    wait, args.stream,
                    fills ? stand_in_copies(call, rank, kStockBytes) : std::vector<StandInCopy>{},
                    call);
              },
          .scratch_bytes = 0};
}

EmulatedCalls::EmulatedCalls(std::span<const Program> programs, const EmulatedPeers& peers)
    : state_(std::make_unique<State>(durations_of(programs, peers))) {
  for (size_t i = 0; i < state_->durations.size(); ++i) {
    const TaskDuration& duration = state_->durations[i];
    state_->kernels.try_emplace({duration.program, duration.task},
                                state_->kernel_of(programs[duration.program], duration, i + 1));
  }
}

EmulatedCalls::~EmulatedCalls() = default;

const CudaKernel* EmulatedCalls::kernel(size_t program, TaskId task) const {
  const auto found = state_->kernels.find({program, task});
  return found == state_->kernels.end() ? nullptr : &found->second;
}

std::vector<HostTimedTask> EmulatedCalls::played(size_t program) const {
  std::vector<HostTimedTask> tasks;
  for (size_t i = 0; i < state_->durations.size(); ++i) {
    const TaskDuration& of = state_->durations[i];
    const CallPlayer::Played last = state_->player.last(i + 1);
    if (of.program == program && last.begin_ns != 0) {
      tasks.push_back({of.task.value, last.begin_ns, last.end_ns});
    }
  }
  return tasks;
}

int64_t EmulatedCalls::device_bytes() const {
  return state_->stock.size_bytes();
}

}  // namespace braid
