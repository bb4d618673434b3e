#include "backends/cpu/cpu_executor.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "backends/buffer_addresses.h"
#include "backends/cpu/host_arena.h"
#include "backends/cpu/prepared_program.h"
#include "backends/cpu/stream_thread.h"
#include "backends/measured_timeline.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr int kPoisonByte = 0xFF;  // all bytes of it: NaN in every floating-point type

}  // namespace

struct CpuExecutor::State {
  CpuExecutorOptions options;
  MemoryPlan plan;
  HostArena persistent_arena;
  HostArena step_arena;
  SpecTable specs;                                      // of all programs
  std::map<std::pair<SpecId, int>, CpuKernel> kernels;  // by spec and number of workers
  std::vector<PreparedProgram> programs;
  PersistentBuffers persistent_buffers;

  bool in_flight = false;
  bool tracing = false;
  int64_t num_launches = 0;
  std::optional<size_t> traced_program;
  int64_t traced_launch = 0;

  StepState step;
  std::vector<std::vector<size_t>> threads_of;         // [program][its stream]
  std::vector<int64_t> scratch_bytes;                  // by thread
  std::vector<std::unique_ptr<StreamThread>> threads;  // last: ends before what it uses

  State(std::vector<Program> sources, MemoryPlan memory, CpuExecutorOptions given);
  ~State();

  void wait_for_streams() {
    step.num_running.wait(/*spin=*/false, [](uint32_t value) { return value == 0; });
    in_flight = false;
  }
  Arenas arenas() const { return {persistent_arena.data(), step_arena.data()}; }
  void add_program(Program source, const StepPlan& step_plan);
  size_t add_thread(const Stream& stream);
  void set_kernels(PreparedProgram& prepared, size_t stream, size_t thread);
  const CpuKernel& kernel_for(const OpSpec& spec, int num_workers);
  std::span<std::byte> persistent_range(std::string_view buffer, int64_t offset_bytes,
                                        size_t size_bytes) const;
};

CpuExecutor::State::State(std::vector<Program> sources, MemoryPlan memory, CpuExecutorOptions given)
    : options(std::move(given)), plan(std::move(memory)) {
  check(sources.size() == plan.programs.size(), "{} programs, but a memory plan of {}",
        sources.size(), plan.programs.size());
  if (!options.make_kernel) {
    options.make_kernel = make_cpu_kernel;
  }
  step.rank = sources.empty() ? 0 : sources[0].rank;
  step.transport = options.transport;
  step.detect_nan = options.detect_nan;
  persistent_arena =
      HostArena(plan.persistent_bytes, fmt::format("persistent buffers of rank {}", step.rank));
  step_arena = HostArena(plan.step_bytes, fmt::format("step buffers of rank {}", step.rank));
  for (size_t i = 0; i < sources.size(); ++i) {
    add_program(std::move(sources[i]), plan.programs[i]);
  }
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i]->start(scratch_bytes[i]);
  }
}

CpuExecutor::State::~State() {
  if (in_flight) {
    step.abandoned = true;
    if (step.transport != nullptr && step.num_running.load() != 0) {
      step.transport->abort(fmt::format("rank {} gave up in the middle of a step", step.rank));
    }
    wait_for_streams();  // each ends at its next task: streams may wait for one another
  }
}

void CpuExecutor::State::add_program(Program source, const StepPlan& step_plan) {
  check(source.rank == step.rank, "programs of ranks {} and {} for one executor", step.rank,
        source.rank);
  programs.push_back(prepare_program(std::move(source), plan, step_plan, arenas()));
  PreparedProgram& prepared = programs.back();
  check(prepared.collectives.empty() || step.transport != nullptr,
        "program {} communicates, but the executor of rank {} has no transport",
        prepared.program.name, step.rank);
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

/// The thread of a stream: programs share those of equal name and kind.
size_t CpuExecutor::State::add_thread(const Stream& stream) {
  const auto found = std::find_if(threads.begin(), threads.end(), [&](const auto& thread) {
    return thread->stream().name == stream.name && thread->stream().kind == stream.kind;
  });
  const auto index = static_cast<size_t>(found - threads.begin());
  if (found == threads.end()) {
    const int num_workers = stream.kind == StreamKind::kCompute ? options.num_workers : 1;
    threads.push_back(std::make_unique<StreamThread>(stream, num_workers, step));
    scratch_bytes.push_back(0);
  }
  return index;
}

void CpuExecutor::State::set_kernels(PreparedProgram& prepared, size_t stream, size_t thread) {
  std::unordered_map<SpecId, const CpuKernel*> known;  // few specs, perhaps a million tasks
  for (PreparedTask& task : prepared.tasks[stream]) {
    if (task.is_collective()) {
      continue;
    }
    const SpecId spec = prepared.program.tasks[task.id.index()].spec;
    const CpuKernel*& kernel = known[spec];
    if (kernel == nullptr) {
      kernel = &kernel_for(prepared.program.specs[spec], threads[thread]->num_workers());
      scratch_bytes[thread] =
          std::max(scratch_bytes[thread], static_cast<int64_t>(kernel->scratch_bytes));
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
  check(!in_flight, "buffer {} is accessed while a step runs", buffer);
  return persistent_buffers.range(buffer, offset_bytes, size_bytes);
}

CpuExecutor::CpuExecutor(std::vector<Program> programs, MemoryPlan plan, CpuExecutorOptions options)
    : state_(std::make_unique<State>(std::move(programs), std::move(plan), std::move(options))) {}

CpuExecutor::~CpuExecutor() = default;

void CpuExecutor::launch(size_t program_index) {
  State& state = *state_;
  check(program_index < state.programs.size(), "program {} of {}", program_index,
        state.programs.size());
  check(!state.in_flight, "a step is launched while another one runs");
  check(!state.step.failure, "a step is launched after an error");
  PreparedProgram& prepared = state.programs[program_index];
  if (state.options.poison_step_arena && state.step_arena.size_bytes() > 0) {
    std::memset(state.step_arena.data(), kPoisonByte,
                static_cast<size_t>(state.step_arena.size_bytes()));
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
  state.wait_for_streams();
  const std::lock_guard lock(state.step.failure_mutex);
  if (!state.step.failure) {
    return;
  }
  if (state.step.failure->is_echo) {
    throw AbortedError(state.step.failure->message);
  }
  throw DeviceError(state.step.failure->message);
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
  RankTimeline timeline = measured_timeline(prepared.program, prepared.times);
  timeline.step = state_->traced_launch;
  return timeline;
}

int64_t CpuExecutor::allocated_bytes() const {
  return state_->persistent_arena.size_bytes() + state_->step_arena.size_bytes();
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
