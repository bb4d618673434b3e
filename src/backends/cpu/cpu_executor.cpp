#include "backends/cpu/cpu_executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "backends/buffer_addresses.h"
#include "backends/cpu/cpu_scratch.h"
#include "backends/cpu/prepared_program.h"
#include "backends/cpu/stream_thread.h"
#include "backends/host_arena.h"
#include "backends/run_ranks.h"
#include "backends/stream_scratch.h"
#include "base/errors.h"
#include "ops/offload.h"
#include "trace/task_timeline.h"

namespace braid {
namespace {

constexpr std::chrono::milliseconds kFailurePoll{50};
constexpr int64_t kStockBytes = int64_t{1} << 20;
constexpr int kPoisonByte = 0xFF;  // in all bytes: NaN in every floating-point type

/// Bytes to copy to the host when the step has ended.
struct EnqueuedRead {
  std::span<const std::byte> from;
  std::span<std::byte> to;
};

void poison(const HostArena& arena) {
  if (arena.size_bytes() > 0) {
    std::memset(arena.data(), kPoisonByte, static_cast<size_t>(arena.size_bytes()));
  }
}

}  // namespace

struct CpuExecutor::State {
  CpuExecutorOptions options;
  MemoryPlan plan;
  HostArena persistent_arena;
  HostArena step_arena;
  HostArena host_arena;
  HostArena stock;                                      // for emulated calls
  SpecTable specs;                                      // of all programs
  std::map<std::pair<SpecId, int>, CpuKernel> kernels;  // by spec and number of workers
  std::vector<PreparedProgram> programs;
  PersistentBuffers persistent_buffers;

  bool in_flight = false;
  std::vector<EnqueuedRead> reads;  // after the step in flight
  bool tracing = false;
  int64_t num_launches = 0;
  std::optional<size_t> traced_program;
  int64_t traced_launch = 0;

  StepState step;
  std::vector<std::vector<size_t>> threads_of;         // [program][its stream]
  StreamScratch scratch;                               // by thread
  std::vector<std::unique_ptr<StreamThread>> threads;  // last member: destroyed before the members
                                                       // that the threads use

  /// Without `persistent`, persistent buffers are allocated and zero.
  State(std::vector<Program> sources, MemoryPlan memory, CpuExecutorOptions given,
        std::optional<HostArena> persistent = std::nullopt);

  void abandon();
  bool wait_for_streams();
  bool wait_briefly();
  void fail_if_overdue();
  std::optional<std::chrono::steady_clock::time_point> failed_at();
  std::string describe_stuck() const;
  bool leave_behind();
  Arenas arenas() const { return {persistent_arena.data(), step_arena.data(), host_arena.data()}; }
  void add_program(Program source, const StepPlan& step_plan);
  void prepare_calls(PreparedProgram& prepared);
  void emulate_calls(PreparedProgram& prepared, const std::vector<int64_t>& task_ns) const;
  size_t add_thread(const Stream& stream);
  void set_kernels(PreparedProgram& prepared, size_t stream, size_t thread);
  const CpuKernel& kernel_for(const OpSpec& spec, int num_workers);
  void check_idle(std::string_view buffer) const {
    check(!in_flight, "buffer {} is accessed while a step runs", buffer);
  }
  std::span<std::byte> persistent_range(std::string_view buffer, int64_t offset_bytes,
                                        size_t size_bytes) const;
};

CpuExecutor::State::State(std::vector<Program> sources, MemoryPlan memory, CpuExecutorOptions given,
                          std::optional<HostArena> persistent)
    : options(std::move(given)), plan(std::move(memory)) {
  check(sources.size() == plan.programs.size(), "{} programs, but a memory plan of {}",
        sources.size(), plan.programs.size());
  if (!options.make_kernel) {
    options.make_kernel = make_cpu_kernel;
  }
  step.rank = sources.empty() ? 0 : sources[0].rank;
  step.transport = options.transport;
  persistent_arena = persistent
                         ? std::move(*persistent)
                         : HostArena(plan.persistent_bytes,
                                     fmt::format("persistent buffers of rank {}", step.rank));
  step_arena = HostArena(plan.step_bytes, fmt::format("step buffers of rank {}", step.rank));
  host_arena = HostArena(plan.host_bytes, fmt::format("buffers on the host of rank {}", step.rank));
  if (options.emulated_peers) {
    stock = HostArena(kStockBytes, fmt::format("numbers for emulated calls of rank {}", step.rank));
    fill_stock({stock.data(), static_cast<size_t>(kStockBytes)});
    step.stock = {stock.data(), static_cast<size_t>(kStockBytes)};
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    add_program(std::move(sources[i]), plan.programs[i]);
  }
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i]->start(scratch.size_bytes(i));
  }
}

/// Makes each stream end at its next task.
void CpuExecutor::State::abandon() {
  step.abandoned = true;
  if (step.num_running.load() == 0) {
    return;
  }
  const std::string reason = fmt::format("rank {} gave up in the middle of a step", step.rank);
  if (step.transport != nullptr) {
    step.transport->abort(reason);
  }
  const std::lock_guard lock(step.failure_mutex);
  if (!step.failure) {
    step.failure = {reason, /*is_echo=*/true, std::chrono::steady_clock::now()};
  }
}

/// False if a task is stuck.
bool CpuExecutor::State::wait_for_streams() {
  const auto patience = std::chrono::nanoseconds(options.stuck_timeout_ns);
  while (!wait_briefly()) {
    fail_if_overdue();
    const auto failed = failed_at();
    if (failed && std::chrono::steady_clock::now() - *failed > patience && !wait_briefly()) {
      return false;  // checked twice: this thread itself may have been without a processor
    }
  }
  in_flight = false;
  return true;
}

/// True if all streams have finished. Polls, because failures of other ranks do not notify this
/// thread.
bool CpuExecutor::State::wait_briefly() {
  std::unique_lock lock(step.finished_mutex);
  return step.finished.wait_for(lock, kFailurePoll, [&] { return step.num_running.load() == 0; });
}

/// A task for which no other rank waits may be stuck, too.
void CpuExecutor::State::fail_if_overdue() {
  const std::lock_guard lock(step.failure_mutex);
  const auto reason =
      step.transport == nullptr || step.failure ? std::nullopt : step.transport->overdue();
  if (reason) {
    step.failure = {*reason, /*is_echo=*/false, std::chrono::steady_clock::now()};
    step.transport->abort(*reason);
  }
}

/// The time when this rank or another one failed.
std::optional<std::chrono::steady_clock::time_point> CpuExecutor::State::failed_at() {
  const std::lock_guard lock(step.failure_mutex);
  if (step.failure) {
    return step.failure->when;
  }
  const auto abort = step.transport != nullptr ? step.transport->aborted() : std::nullopt;
  return abort ? std::optional(abort->when) : std::nullopt;
}

/// "rank 1, stream compute, task 7 (linear ...) still runs 2 s after the failure".
std::string CpuExecutor::State::describe_stuck() const {
  std::string tasks;
  for (const auto& thread : threads) {
    if (const std::optional<TaskId> task = thread->running_task()) {
      tasks += fmt::format(", stream {}, task {} ({})", thread->stream().name, task->value,
                           describe_task(step.prepared->program, *task));
    }
  }
  return fmt::format("rank {}{} still runs {} s after the failure", step.rank, tasks,
                     static_cast<double>(options.stuck_timeout_ns) / 1e9);
}

/// Whether threads continue that cannot be waited for. They may touch everything except the
/// transport.
bool CpuExecutor::State::leave_behind() {
  if (!in_flight) {
    return false;
  }
  abandon();
  if (wait_for_streams()) {
    return false;
  }
  const std::lock_guard lock(step.failure_mutex);
  step.transport = nullptr;
  for (const auto& thread : threads) {
    thread->abandon();
  }
  return true;
}

void CpuExecutor::State::add_program(Program source, const StepPlan& step_plan) {
  check(source.rank == step.rank, "programs of ranks {} and {} for one executor", step.rank,
        source.rank);
  programs.push_back(prepare_program(std::move(source), plan, step_plan, arenas()));
  PreparedProgram& prepared = programs.back();
  prepare_calls(prepared);
  persistent_buffers.add(prepared.program, step_plan, arenas());
  std::vector<size_t>& own = threads_of.emplace_back();
  for (size_t stream = 0; stream < prepared.program.streams.size(); ++stream) {
    const size_t thread = add_thread(prepared.program.streams[stream]);
    check(std::find(own.begin(), own.end(), thread) == own.end(),
          "program {} has two streams named {}", prepared.program.name,
          prepared.program.streams[stream].name);
    own.push_back(thread);
    set_kernels(prepared, stream, thread);
  }
}

void CpuExecutor::State::prepare_calls(PreparedProgram& prepared) {
  if (options.emulated_peers) {
    return emulate_calls(prepared, options.emulated_peers->task_ns.at(programs.size() - 1));
  }
  check(prepared.calls.empty() || step.transport != nullptr,
        "program {} communicates, but the executor of rank {} has no transport",
        prepared.program.name, step.rank);
  for (const CommCall& call : prepared.calls) {
    step.transport->prepare(call);
  }
}

void CpuExecutor::State::emulate_calls(PreparedProgram& prepared,
                                       const std::vector<int64_t>& task_ns) const {
  check(task_ns.size() == prepared.program.tasks.size(), "{} tasks of {}, and durations of {}",
        prepared.program.tasks.size(), prepared.program.name, task_ns.size());
  prepared.emulated.resize(prepared.calls.size());
  for (const std::vector<PreparedTask>& stream : prepared.tasks) {
    for (const PreparedTask& task : stream) {
      if (task.communicates()) {
        prepared.emulated[task.call] = {
            .copies = stand_in_copies(prepared.calls[task.call], step.rank, stock.size_bytes()),
            .duration_ns = task_ns[task.id.index()],
            .every_step = prepared.calls[task.call].result_bytes() <=
                          options.emulated_peers->anew_bytes_of(
                              prepared.program, prepared.program.tasks[task.id.index()]),
            .member = check_comm_call(prepared.calls[task.call], step.rank)};
      }
    }
  }
}

/// The thread of a stream: programs share threads for streams of equal name and kind.
size_t CpuExecutor::State::add_thread(const Stream& stream) {
  const size_t index = scratch.add(stream);
  if (index == threads.size()) {
    const int num_workers = workers_of(stream, options.num_workers);
    threads.push_back(std::make_unique<StreamThread>(stream, num_workers, step));
  }
  return index;
}

void CpuExecutor::State::set_kernels(PreparedProgram& prepared, size_t stream, size_t thread) {
  std::unordered_map<SpecId, const CpuKernel*> known;  // few specs, perhaps a million tasks
  for (PreparedTask& task : prepared.tasks[stream]) {
    const SpecId spec = prepared.program.tasks[task.id.index()].spec;
    if (task.communicates() || does_nothing(prepared.program.specs[spec])) {
      continue;
    }
    const CpuKernel*& kernel = known[spec];
    if (kernel == nullptr) {
      kernel = &kernel_for(prepared.program.specs[spec], threads[thread]->num_workers());
      scratch.need(thread, kernel->scratch_bytes);
    }
    task.kernel = kernel;
  }
}

const CpuKernel& CpuExecutor::State::kernel_for(const OpSpec& spec, int num_workers) {
  const std::pair key(specs.intern(spec), num_workers);
  auto found = kernels.find(key);
  if (found == kernels.end()) {
    found = kernels.emplace(key, options.make_kernel(spec, num_workers)).first;
    check(found->second.run != nullptr, "op {} has an empty kernel", spec.op);
  }
  return found->second;
}

std::span<std::byte> CpuExecutor::State::persistent_range(std::string_view buffer,
                                                          int64_t offset_bytes,
                                                          size_t size_bytes) const {
  check_idle(buffer);
  return persistent_buffers.range(buffer, offset_bytes, size_bytes);
}

CpuExecutor::CpuExecutor(std::vector<Program> programs, MemoryPlan plan, CpuExecutorOptions options)
    : state_(std::make_unique<State>(std::move(programs), std::move(plan), std::move(options))) {}

CpuExecutor::~CpuExecutor() {
  if (state_ != nullptr && state_->leave_behind()) {
    static_cast<void>(state_.release());
  }
}

void CpuExecutor::launch(size_t program_index) {
  State& state = *state_;
  check(program_index < state.programs.size(), "program {} of {}", program_index,
        state.programs.size());
  check(!state.in_flight, "a step is launched while another one runs");
  check(!state.step.failure, "a step is launched after an error");
  PreparedProgram& prepared = state.programs[program_index];
  if (state.options.poison_step_arena) {
    poison(state.step_arena);
    poison(state.host_arena);
  }
  if (state.tracing) {
    std::fill(prepared.times.begin(), prepared.times.end(), TaskTimes{});
    state.traced_program = program_index;
    state.traced_launch = state.num_launches;
  }
  ++state.num_launches;
  ++prepared.num_steps;
  check(prepared.num_steps != PreparedProgram::kPoisoned, "too many steps for one executor");
  state.step.prepared = &prepared;
  state.step.tracing = state.tracing;
  const std::vector<size_t>& threads = state.threads_of[program_index];
  state.step.num_running.store(static_cast<uint32_t>(threads.size()));
  state.in_flight = true;
  state.step.start = std::chrono::steady_clock::now();
  for (size_t stream = 0; stream < threads.size(); ++stream) {
    state.threads[threads[stream]]->run_step(stream);
  }
}

void CpuExecutor::wait() {
  State& state = *state_;
  check(state.in_flight, "no step was launched");
  const std::string stuck = state.wait_for_streams() ? "" : state.describe_stuck();
  const std::lock_guard lock(state.step.failure_mutex);
  const std::optional<StepFailure>& failure = state.step.failure;
  if (failure && !failure->is_echo) {
    throw DeviceError(stuck.empty() ? failure->message
                                    : fmt::format("{}; {}", failure->message, stuck));
  }
  if (!stuck.empty()) {
    throw StuckError(stuck);
  }
  if (failure) {
    throw AbortedError(failure->message);
  }
  for (const EnqueuedRead& read : state.reads) {
    std::copy(read.from.begin(), read.from.end(), read.to.begin());
  }
  state.reads.clear();
}

void CpuExecutor::write(std::string_view buffer, int64_t offset_bytes,
                        std::span<const std::byte> bytes) {
  const auto target = state_->persistent_range(buffer, offset_bytes, bytes.size());
  std::copy(bytes.begin(), bytes.end(), target.begin());
}

void CpuExecutor::read(std::string_view buffer, int64_t offset_bytes, std::span<std::byte> bytes) {
  const auto source = state_->persistent_range(buffer, offset_bytes, bytes.size());
  std::copy(source.begin(), source.end(), bytes.begin());
}

/// At most one step is in flight, so no step precedes the write.
void CpuExecutor::enqueue_write(std::string_view buffer, int64_t offset_bytes,
                                std::span<const std::byte> bytes) {
  write(buffer, offset_bytes, bytes);
}

void CpuExecutor::enqueue_read(std::string_view buffer, int64_t offset_bytes,
                               std::span<std::byte> bytes) {
  check(state_->in_flight, "buffer {} is to be read after a step, and none was launched", buffer);
  state_->reads.push_back(
      {state_->persistent_buffers.range(buffer, offset_bytes, bytes.size()), bytes});
}

void CpuExecutor::zero(std::string_view buffer) {
  state_->check_idle(buffer);
  const auto target = state_->persistent_buffers.whole(buffer);
  std::fill(target.begin(), target.end(), std::byte{0});
}

HostBlock CpuExecutor::host_block(int64_t size_bytes) {
  const auto arena = std::make_shared<HostArena>(size_bytes, "a block of the host's");
  return {{arena->data(), static_cast<size_t>(size_bytes)}, arena};
}

void CpuExecutor::set_finite_checks(bool enabled) {
  check(!state_->in_flight, "checks are switched while a step runs");
  state_->step.finite_checks = enabled;
}

/// The old memory of steps is free before the new one is allocated.
void CpuExecutor::replace_programs(std::vector<Program> programs, MemoryPlan plan) {
  check(!state_->in_flight, "programs are replaced while a step runs");
  check(plan.persistent_bytes == state_->plan.persistent_bytes &&
            plan.persistent_offset_bytes == state_->plan.persistent_offset_bytes,
        "the new programs of rank {} have other persistent buffers", state_->step.rank);
  HostArena persistent = std::move(state_->persistent_arena);
  const CpuExecutorOptions options = state_->options;
  const bool finite_checks = state_->step.finite_checks;
  const bool tracing = state_->tracing;
  const int64_t num_launches = state_->num_launches;
  state_.reset();
  state_ =
      std::make_unique<State>(std::move(programs), std::move(plan), options, std::move(persistent));
  state_->step.finite_checks = finite_checks;
  state_->num_launches = num_launches;
  set_tracing(tracing);
}

void CpuExecutor::set_tracing(bool enabled) {
  check(!state_->in_flight, "tracing is switched while a step runs");
  state_->tracing = enabled;
  for (PreparedProgram& prepared : state_->programs) {
    if (enabled) {
      prepared.times.resize(prepared.program.tasks.size());
    }
  }
}

RankTimeline CpuExecutor::timeline() const {
  check(state_->traced_program.has_value() && !state_->in_flight, "no step was traced");
  const PreparedProgram& prepared = state_->programs[*state_->traced_program];
  RankTimeline timeline = task_timeline(prepared.program, prepared.times);
  timeline.step = state_->traced_launch;
  timeline.clock_origin_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(state_->step.start.time_since_epoch())
          .count();
  return timeline;
}

int64_t CpuExecutor::allocated_bytes() const {
  return state_->persistent_arena.size_bytes() + state_->step_arena.size_bytes();
}

int64_t CpuExecutor::allocated_host_bytes() const {
  return state_->host_arena.size_bytes();
}

int64_t CpuExecutor::workspace_bytes() const {
  int64_t size = 0;
  for (const PreparedProgram& prepared : state_->programs) {
    size += prepared.size_bytes();
  }
  for (const auto& thread : state_->threads) {
    size += thread->scratch_bytes();
  }
  return size;
}

}  // namespace braid
