#include "backends/cuda/cuda_executor.h"

#include <optional>
#include <string>
#include <utility>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/device_hash.h"
#include "backends/cuda/device_rank.h"
#include "backends/cuda/pinned_arena.h"
#include "backends/cuda/step_enqueuer.h"
#include "backends/cuda/step_tracer.h"
#include "backends/cuda/steps_in_flight.h"
#include "base/errors.h"
#include "base/failure_note.h"
#include "comm/transport.h"

namespace braid {

struct CudaExecutor::State {
  CudaContext& context;
  CudaExecutorOptions options;
  DeviceRank rank;
  StepsInFlight steps;
  std::vector<bool> has_run;  // by program
  bool finite_checks = false;
  std::optional<std::string> failure;
  bool is_failure_of_another = false;
  int64_t traced_launch = 0;
  std::unique_ptr<StepTracer> tracer;  // last member: its graphs are destroyed before what they use

  /// What new programs continue with.
  struct Before {
    std::optional<DeviceArena> persistent = std::nullopt;
    int64_t num_launched = 0;
  };

  State(std::vector<Program> programs, MemoryPlan plan, CudaContext& of_rank,
        CudaExecutorOptions chosen, Before before)
      : context(of_rank),
        options(std::move(chosen)),
        rank(std::move(programs), std::move(plan), context, options, std::move(before.persistent)),
        steps(rank, options.timeout_ns, before.num_launched),
        has_run(rank.programs().size()) {}

  bool one_by_one() const { return options.sync_each_task || finite_checks; }
  bool launches_graph(size_t program_index) const {
    return rank.has_graphs() && !one_by_one() && has_run[program_index];
  }
  void check_idle(std::string_view what) const {
    check(steps.count() == 0, "{} while a step runs", what);
  }

  void begin_step(size_t program_index);
  void fail_at_launch(std::string error);
  void start_step(size_t program_index);
  void enqueue_step(size_t program_index, TaskObserver* observer);
  void wait_for_oldest();

  bool is_traced() const { return tracer != nullptr && tracer->enabled(); }
  StepTracer::Step traced_step(size_t program_index, bool as_graph);
  void prepare_tracing();

  void transfer(std::byte* to, const std::byte* from, size_t size_bytes);
  std::span<std::byte> range(std::string_view buffer, int64_t offset_bytes,
                             size_t size_bytes) const {
    return rank.memory().persistent_buffers().range(buffer, offset_bytes, size_bytes);
  }

  std::string describe_failure(const DeviceError& error) const;
  void fail(std::string reason);
  bool drain() const noexcept { return rank.drain(failure.has_value()); }
};

/// Enqueues the step and the event at its end.
void CudaExecutor::State::begin_step(size_t program_index) {
  steps.add(program_index);
  try {
    rank.use_device();
    steps.mark_begin(rank.launch_stream());
    start_step(program_index);
    steps.mark_end(rank.launch_stream());
  } catch (const TaskError& error) {
    fail_at_launch(error.what());
  } catch (const std::exception& error) {
    fail_at_launch(fmt::format("rank {}, program {}: {}", rank.rank(),
                               rank.programs()[program_index].name, error.what()));
  }
}

/// If another rank has failed, that is the reason of this error: memory of a rank that has ended is
/// no longer writable.
void CudaExecutor::State::fail_at_launch(std::string error) {
  const std::optional<std::string> fault = rank.communication().fault();
  is_failure_of_another = fault.has_value();
  fail(fault ? steps.describe_oldest(*fault) : std::move(error));
}

/// The first step of a program runs task by task, so that a launch that the device refuses becomes
/// an error of its task.
void CudaExecutor::State::start_step(size_t program_index) {
  const bool as_graph = launches_graph(program_index);
  has_run[program_index] = true;
  if (is_traced()) {
    traced_launch = steps.num_launched() - 1;
    tracer->begin(traced_step(program_index, as_graph));
  }
  if (options.poison_step_arena) {
    rank.memory().poison_step_buffers(rank.launch_stream());
  }
  rank.begin_step(steps.num_launched() - 1, program_index);
  if (is_traced()) {
    tracer->run();
  } else if (as_graph) {
    rank.launch_graph(program_index);
  } else {
    enqueue_step(program_index, nullptr);
  }
}

void CudaExecutor::State::enqueue_step(size_t program_index, TaskObserver* observer) {
  rank.enqueue(
      program_index,
      {.observer = observer, .wait_for_each = one_by_one(), .finite_checks = finite_checks});
}

void CudaExecutor::State::wait_for_oldest() {
  if (failure) {
    drain();
    if (is_failure_of_another) {
      throw AbortedError(*failure);
    }
    throw DeviceError(*failure);
  }
  try {
    rank.use_device();
    steps.wait_for_oldest();
    if (tracer != nullptr && tracer->is_open()) {
      tracer->finish();
    }
  } catch (const AbortedError& error) {
    fail(error.what());
    drain();
    throw;
  } catch (const TaskError& error) {
    fail(error.what());
    throw;
  } catch (const DeviceError& error) {
    fail(describe_failure(error));
    throw DeviceError(*failure);
  }
}

StepTracer::Step CudaExecutor::State::traced_step(size_t program_index, bool as_graph) {
  return {
      .program_index = program_index,
      .program = &rank.programs()[program_index],
      .as_graph = as_graph,
      .stream = rank.launch_stream(),
      .enqueue =
          [this, program_index](TaskObserver& observer) { enqueue_step(program_index, &observer); },
      .host_timed = [this, program_index] { return rank.communication().played(program_index); }};
}

/// Only for programs that have run: the first step of another one is not a graph.
void CudaExecutor::State::prepare_tracing() {
  for (size_t i = 0; i < has_run.size(); ++i) {
    if (launches_graph(i)) {
      tracer->prepare(traced_step(i, true));
    }
  }
}

/// A copy in the order of the launch stream.
void CudaExecutor::State::transfer(std::byte* to, const std::byte* from, size_t size_bytes) {
  if (size_bytes > 0) {
    rank.use_device();
    BRAID_CUDA_CHECK(
        cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, rank.launch_stream()));
  }
}

std::string CudaExecutor::State::describe_failure(const DeviceError& error) const {
  return fmt::format(
      "rank {}: a task failed on the device, which tells no more than this: {} (run again with "
      "the environment variable BRAID_SYNC_TASKS=1 to see which)",
      rank.rank(), error.what());
}

/// Tells the other ranks, so that none waits for this one.
void CudaExecutor::State::fail(std::string reason) {
  failure = std::move(reason);
  note_failure(*failure);
  rank.communication().fail(*failure);
}

CudaExecutor::CudaExecutor(std::vector<Program> programs, MemoryPlan plan, CudaContext& context,
                           CudaExecutorOptions options)
    : state_(std::make_unique<State>(std::move(programs), std::move(plan), context,
                                     std::move(options), State::Before{})) {}

/// Work that never ends is leaked with its memory: freeing the memory would wait for it.
CudaExecutor::~CudaExecutor() {
  if (state_ == nullptr) {  // programs could not be replaced
    return;
  }
  ignore_error(cudaSetDevice(state_->rank.device()));
  if (!state_->drain()) {
    static_cast<void>(state_.release());
  }
}

void CudaExecutor::launch(size_t program_index) {
  State& state = *state_;
  check(program_index < state.has_run.size(), "program {} of {}", program_index,
        state.has_run.size());
  check(state.steps.count() < max_steps_in_flight(), "a step is launched while {} run",
        state.steps.count());
  check(!state.is_traced() || state.steps.count() == 0,
        "a traced step is launched while another one runs");
  check(!state.failure, "a step is launched after an error");
  state.begin_step(program_index);
}

int CudaExecutor::max_steps_in_flight() const {
  return StepsInFlight::kMost;
}

std::chrono::nanoseconds CudaExecutor::lateness() const {
  return state_->steps.lateness();
}

bool CudaExecutor::launch_may_wait() const {
  return !state_->rank.communication().empty();
}

void CudaExecutor::wait() {
  State& state = *state_;
  check(state.steps.count() > 0, "no step was launched");
  try {
    state.wait_for_oldest();
    state.steps.drop_oldest();
  } catch (...) {
    state.steps.drop_all();
    throw;
  }
}

void CudaExecutor::write(std::string_view buffer, int64_t offset_bytes,
                         std::span<const std::byte> bytes) {
  state_->check_idle(fmt::format("buffer {} is accessed", buffer));
  const auto target = state_->range(buffer, offset_bytes, bytes.size());
  state_->transfer(target.data(), bytes.data(), bytes.size());
  BRAID_CUDA_CHECK(cudaStreamSynchronize(state_->rank.launch_stream()));
}

void CudaExecutor::read(std::string_view buffer, int64_t offset_bytes, std::span<std::byte> bytes) {
  state_->check_idle(fmt::format("buffer {} is accessed", buffer));
  const auto source = state_->range(buffer, offset_bytes, bytes.size());
  state_->transfer(bytes.data(), source.data(), bytes.size());
  BRAID_CUDA_CHECK(cudaStreamSynchronize(state_->rank.launch_stream()));
}

void CudaExecutor::enqueue_write(std::string_view buffer, int64_t offset_bytes,
                                 std::span<const std::byte> bytes) {
  State& state = *state_;
  const auto target = state.range(buffer, offset_bytes, bytes.size());
  check(!state.failure, "buffer {} is written after an error", buffer);
  try {
    state.transfer(target.data(), bytes.data(), bytes.size());
  } catch (const DeviceError& error) {  // of an earlier step
    state.fail(state.describe_failure(error));
    throw DeviceError(*state.failure);
  }
}

void CudaExecutor::enqueue_read(std::string_view buffer, int64_t offset_bytes,
                                std::span<std::byte> bytes) {
  State& state = *state_;
  check(state.steps.count() > 0, "buffer {} is to be read after a step, and none was launched",
        buffer);
  const auto source = state.range(buffer, offset_bytes, bytes.size());
  if (state.failure) {
    return;  // the next wait throws the error
  }
  try {
    state.transfer(bytes.data(), source.data(), bytes.size());
    state.steps.mark_end(state.rank.launch_stream());
  } catch (const DeviceError& error) {
    state.fail(state.describe_failure(error));
  }
}

void CudaExecutor::zero(std::string_view buffer) {
  state_->check_idle(fmt::format("buffer {} is accessed", buffer));
  const auto target = state_->rank.memory().persistent_buffers().whole(buffer);
  state_->rank.use_device();
  BRAID_CUDA_CHECK(cudaMemsetAsync(target.data(), 0, target.size(), state_->rank.launch_stream()));
  BRAID_CUDA_CHECK(cudaStreamSynchronize(state_->rank.launch_stream()));
}

uint64_t CudaExecutor::hash(std::span<const BufferElems> parts) {
  State& state = *state_;
  state.check_idle("buffers are hashed");
  state.rank.use_device();
  uint64_t* const sum = state.rank.word();
  const cudaStream_t stream = state.rank.launch_stream();
  BRAID_CUDA_CHECK(cudaMemsetAsync(sum, 0, sizeof(*sum), stream));
  uint64_t index = 0;
  for (const BufferElems& part : parts) {
    const auto elem_bytes = static_cast<int64_t>(dtype_bytes(part.dtype));
    const auto bytes = state.range(part.buffer, part.begin * elem_bytes,
                                   static_cast<size_t>(part.num_elems * elem_bytes));
    add_hash_on_device({.data = bytes.data(), .num_elems = part.num_elems, .dtype = part.dtype},
                       index, sum, stream);
    index += static_cast<uint64_t>(part.num_elems);
  }
  uint64_t result = 0;
  BRAID_CUDA_CHECK(cudaMemcpyAsync(&result, sum, sizeof(result), cudaMemcpyDeviceToHost, stream));
  BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
  return result;
}

HostBlock CudaExecutor::host_block(int64_t size_bytes) {
  state_->rank.use_device();
  const auto arena = std::make_shared<PinnedArena>(size_bytes, "a block for transfers");
  return {{arena->data(), static_cast<size_t>(size_bytes)}, arena};
}

void CudaExecutor::set_finite_checks(bool enabled) {
  state_->check_idle("checks are switched");
  state_->finite_checks = enabled;
}

/// The old memory of steps is free before the new one is allocated.
void CudaExecutor::replace_programs(std::vector<Program> programs, MemoryPlan plan) {
  State& old = *state_;
  old.check_idle("programs are replaced");
  check(!old.failure && !old.options.emulated_peers,
        "programs are replaced after an error, or beside emulated ranks");
  const MemoryPlan& before = old.rank.memory().plan();
  check(plan.persistent_bytes == before.persistent_bytes &&
            plan.persistent_offset_bytes == before.persistent_offset_bytes,
        "the new programs of rank {} have other persistent buffers", old.rank.rank());
  old.rank.use_device();
  static_cast<void>(old.drain());
  CudaContext& context = old.context;
  const CudaExecutorOptions options = old.options;
  const bool finite_checks = old.finite_checks;
  const bool tracing = old.is_traced();
  State::Before kept{.persistent = old.rank.memory().take_persistent(),
                     .num_launched = old.steps.num_launched()};
  state_.reset();
  state_ = std::make_unique<State>(std::move(programs), std::move(plan), context, options,
                                   std::move(kept));
  state_->finite_checks = finite_checks;
  if (tracing) {
    set_tracing(true);
  }
}

void CudaExecutor::set_tracing(bool enabled) {
  State& state = *state_;
  state.check_idle("tracing is switched");
  state.rank.use_device();
  if (enabled) {
    if (state.tracer == nullptr) {
      state.tracer = std::make_unique<StepTracer>(state.rank.device(), state.has_run.size());
    }
    state.tracer->enable();
    state.prepare_tracing();
  } else if (state.tracer != nullptr) {
    state.tracer->disable();
  }
}

RankTimeline CudaExecutor::timeline() const {
  check(state_->tracer != nullptr && state_->steps.count() == 0, "no step was traced");
  RankTimeline timeline = state_->tracer->timeline();
  timeline.step = state_->traced_launch;
  return timeline;
}

int64_t CudaExecutor::allocated_bytes() const {
  return state_->rank.memory().device_bytes();
}

int64_t CudaExecutor::allocated_host_bytes() const {
  return state_->rank.memory().host_bytes();
}

std::string CudaExecutor::last_meeting() const {
  const std::optional<StepMarks> marks = state_->rank.marks();
  return marks ? describe_last(state_->rank.progress(*marks)) : "";
}

std::vector<std::string> CudaExecutor::notes() const {
  return state_->rank.notes();
}

int64_t CudaExecutor::workspace_bytes() const {
  return state_->rank.workspace_bytes();
}

}  // namespace braid
