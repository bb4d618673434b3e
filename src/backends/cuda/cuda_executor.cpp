#include "backends/cuda/cuda_executor.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "backends/buffer_addresses.h"
#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/finite_check.h"
#include "backends/cuda/step_timer.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr int kPoisonByte = 0xFF;  // all bytes of it: NaN in every floating-point type
constexpr int64_t kFoundBytes = 256;

/// A stream of the programs on the device.
struct DeviceStream {
  Stream stream;
  CudaStream handle;
  CudaEvent joined;
  int64_t scratch_bytes = 0;
  DeviceArena scratch;
};

/// A program with all that a step of it needs.
struct CudaProgram {
  Program program;
  std::vector<std::byte*> operands;        // parallel to Program::operands
  std::vector<const CudaKernel*> kernels;  // by task; null: nothing is to be done
  std::vector<size_t> streams;             // index of the device stream, by stream of the program
  CudaGraphExec graph;
  std::optional<StepTimer> timer;
  bool has_run = false;
};

/// An error with the task that it came from.
class TaskError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

void check_placements(const Program& program) {
  for (const Buffer& buffer : program.buffers) {
    check(buffer.placement == Placement::kDevice,
          "program {}: buffer {} is placed in {} memory; the CUDA executor only has device memory",
          program.name, buffer.name, placement_name(buffer.placement));
  }
}

/// Whether the task has nothing to do because its group is this rank alone. Throws InternalError
/// if there are others.
bool is_lone_collective(const Program& program, TaskId id) {
  const auto group = group_of(program, program.spec(program.tasks[id.index()]));
  if (!group) {
    return false;
  }
  const size_t num_ranks = program.groups[group->index()].ranks.size();
  check(num_ranks == 1, "task {} ({}) communicates with {} ranks, which the CUDA executor cannot",
        id.value, describe_task(program, id), num_ranks);
  return true;
}

}  // namespace

struct CudaExecutor::State {
  CudaContext& context;
  CudaExecutorOptions options;
  MemoryPlan plan;
  int rank = 0;
  SpecTable specs;  // of all programs
  std::map<SpecId, CudaKernel> kernels;
  DeviceArena persistent_arena;
  DeviceArena step_arena;
  DeviceArena found;  // for detect_nan
  PersistentBuffers persistent_buffers;
  CudaStream launch_stream;  // every step starts and ends on it
  CudaEvent forked;
  std::vector<CudaEvent> events;  // of any program: they take turns
  std::vector<DeviceStream> streams;
  std::vector<CudaProgram> programs;

  bool in_flight = false;
  bool tracing = false;
  int64_t num_launches = 0;
  std::optional<std::string> failure;
  std::optional<size_t> traced_program;
  int64_t traced_launch = 0;
  std::vector<TaskTimes> traced_times;

  State(std::vector<Program> sources, MemoryPlan memory, CudaContext& cuda_context,
        CudaExecutorOptions given);
  ~State();

  void use_device() const { BRAID_CUDA_CHECK(cudaSetDevice(context.device())); }
  Arenas arenas() const { return {persistent_arena.data(), step_arena.data()}; }
  bool one_by_one() const { return options.sync_each_task || options.detect_nan; }
  bool is_graph() const { return options.mode == CudaStepMode::kGraph && !one_by_one(); }

  void add_program(Program source);
  size_t add_stream(const Stream& stream);
  void set_kernels(CudaProgram& target);
  const CudaKernel& kernel_for(const OpSpec& spec);
  void allocate();
  void bind(CudaProgram& target, const StepPlan& step_plan);
  void capture(CudaProgram& target);

  void enqueue_step(CudaProgram& target, StepTimer* timer, bool sync);
  void enqueue_task(const CudaProgram& target, TaskId id, StepTimer* timer, bool sync);
  void check_finite(const CudaProgram& target, TaskId id, cudaStream_t stream);
  void start_step(CudaProgram& target);
  void drain() noexcept;
  std::span<std::byte> persistent_range(std::string_view buffer, int64_t offset_bytes,
                                        size_t size_bytes) const;
};

CudaExecutor::State::State(std::vector<Program> sources, MemoryPlan memory,
                           CudaContext& cuda_context, CudaExecutorOptions given)
    : context(cuda_context), options(std::move(given)), plan(std::move(memory)) {
  check(sources.size() == plan.programs.size(), "{} programs, but a memory plan of {}",
        sources.size(), plan.programs.size());
  if (!options.make_kernel) {
    options.make_kernel = make_cuda_kernel;
  }
  use_device();
  launch_stream = CudaStream(0);
  forked = CudaEvent(EventTiming::kNone);
  rank = sources.empty() ? 0 : sources[0].rank;
  programs.reserve(sources.size());
  for (Program& source : sources) {
    add_program(std::move(source));
  }
  allocate();  // after the kernels, which may need memory while they measure algorithms
  for (size_t i = 0; i < programs.size(); ++i) {
    bind(programs[i], plan.programs[i]);
  }
}

CudaExecutor::State::~State() {
  ignore_error(cudaSetDevice(context.device()));
  drain();
}

void CudaExecutor::State::add_program(Program source) {
  check(source.rank == rank, "programs of ranks {} and {} for one executor", rank, source.rank);
  check_placements(source);
  CudaProgram& target = programs.emplace_back();
  target.program = std::move(source);
  for (const Stream& stream : target.program.streams) {
    const size_t index = add_stream(stream);
    check(std::find(target.streams.begin(), target.streams.end(), index) == target.streams.end(),
          "program {} has two streams named {}", target.program.name, stream.name);
    target.streams.push_back(index);
  }
  while (events.size() < target.program.num_events) {
    events.emplace_back(EventTiming::kNone);
  }
  set_kernels(target);
}

/// The device's stream of a stream: programs share those of equal name and kind.
size_t CudaExecutor::State::add_stream(const Stream& stream) {
  const auto found_stream = std::find_if(streams.begin(), streams.end(), [&](const auto& other) {
    return other.stream.name == stream.name && other.stream.kind == stream.kind;
  });
  const auto index = static_cast<size_t>(found_stream - streams.begin());
  if (found_stream == streams.end()) {
    DeviceStream& added = streams.emplace_back();
    added.stream = stream;
    added.handle = CudaStream(stream.priority);
    added.joined = CudaEvent(EventTiming::kNone);
  }
  return index;
}

void CudaExecutor::State::set_kernels(CudaProgram& target) {
  const Program& program = target.program;
  std::vector<const CudaKernel*> known(program.specs.size());  // few specs, perhaps a million tasks
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    check(task.stream.index() < target.streams.size(), "program {}: stream {} of {}", program.name,
          task.stream.value, target.streams.size());
    if (is_lone_collective(program, TaskId(i))) {
      target.kernels.push_back(nullptr);
      continue;
    }
    const CudaKernel*& kernel = known[task.spec.index()];
    if (kernel == nullptr) {
      kernel = &kernel_for(program.spec(task));
    }
    int64_t& scratch_bytes = streams[target.streams[task.stream.index()]].scratch_bytes;
    scratch_bytes = std::max(scratch_bytes, static_cast<int64_t>(kernel->scratch_bytes));
    target.kernels.push_back(kernel);
  }
}

const CudaKernel& CudaExecutor::State::kernel_for(const OpSpec& spec) {
  const SpecId id = specs.intern(spec);
  auto entry = kernels.find(id);
  if (entry == kernels.end()) {
    entry = kernels.emplace(id, options.make_kernel(spec, context)).first;
    check(entry->second.launch != nullptr, "op {} has an empty kernel", spec.op);
  }
  return entry->second;
}

void CudaExecutor::State::allocate() {
  persistent_arena =
      DeviceArena(plan.persistent_bytes, fmt::format("persistent buffers of rank {}", rank));
  step_arena = DeviceArena(plan.step_bytes, fmt::format("step buffers of rank {}", rank));
  for (DeviceStream& stream : streams) {
    stream.scratch = DeviceArena(stream.scratch_bytes, fmt::format("scratch of rank {}, stream {}",
                                                                   rank, stream.stream.name));
  }
  if (options.detect_nan) {
    found = DeviceArena(kFoundBytes, fmt::format("search for NaN of rank {}", rank));
  }
}

void CudaExecutor::State::bind(CudaProgram& target, const StepPlan& step_plan) {
  target.operands = operand_addresses(target.program, plan, step_plan, arenas());
  persistent_buffers.add(target.program, step_plan, arenas());
  if (is_graph()) {
    capture(target);
  }
}

void CudaExecutor::State::capture(CudaProgram& target) {
  CudaCapture capturing(launch_stream);
  enqueue_step(target, nullptr, /*sync=*/false);
  target.graph = CudaGraphExec(capturing.end(), launch_stream);
}

/// All streams start after what the launch stream did before, and it goes on after them.
void CudaExecutor::State::enqueue_step(CudaProgram& target, StepTimer* timer, bool sync) {
  if (timer != nullptr) {
    timer->start_step(launch_stream);
  }
  BRAID_CUDA_CHECK(cudaEventRecord(forked, launch_stream));
  for (const size_t stream : target.streams) {
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(streams[stream].handle, forked));
  }
  for (size_t i = 0; i < target.program.tasks.size(); ++i) {
    enqueue_task(target, TaskId(i), timer, sync);
  }
  for (const size_t stream : target.streams) {
    BRAID_CUDA_CHECK(cudaEventRecord(streams[stream].joined, streams[stream].handle));
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(launch_stream, streams[stream].joined));
  }
}

/// Any error becomes a TaskError.
void CudaExecutor::State::enqueue_task(const CudaProgram& target, TaskId id, StepTimer* timer,
                                       bool sync) {
  const Program& program = target.program;
  const Task& task = program.tasks[id.index()];
  const DeviceStream& on = streams[target.streams[task.stream.index()]];
  try {
    for (const EventId event : program.waits_of(task)) {
      BRAID_CUDA_CHECK(cudaStreamWaitEvent(on.handle, events[event.index()]));
    }
    if (timer != nullptr) {
      timer->start_task(id.index(), on.handle);
    }
    if (const CudaKernel* kernel = target.kernels[id.index()]) {
      kernel->launch({.operands = {target.operands.data() + task.operands_begin,
                                   program.spec(task).operands.size()},
                      .scratch = on.scratch.data(),
                      .stream = on.handle});
      cuda_check(cudaGetLastError(), "kernel launch");
    }
    if (timer != nullptr) {
      timer->end_task(id.index(), on.handle);
    }
    if (task.record.valid()) {
      BRAID_CUDA_CHECK(cudaEventRecord(events[task.record.index()], on.handle));
    }
    if (sync) {
      BRAID_CUDA_CHECK(cudaStreamSynchronize(on.handle));
      if (options.detect_nan) {
        check_finite(target, id, on.handle);
      }
    }
  } catch (const std::exception& error) {
    throw TaskError(fmt::format("rank {}, stream {}, task {} ({}): {}", rank, on.stream.name,
                                id.value, describe_task(program, id), error.what()));
  }
}

void CudaExecutor::State::check_finite(const CudaProgram& target, TaskId id, cudaStream_t stream) {
  const Program& program = target.program;
  const Task& task = program.tasks[id.index()];
  const OpSpec& spec = program.spec(task);
  const auto ranges = program.operands_of(task);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!writes(spec.operands[i].access)) {
      continue;
    }
    const auto element = find_non_finite_on_device(
        target.operands[task.operands_begin + i], ranges[i].end - ranges[i].begin,
        spec.operands[i].dtype, reinterpret_cast<uint64_t*>(found.data()), stream);
    if (element) {
      throw_device_error("wrote NaN or infinity to element {} of buffer {}",
                         ranges[i].begin + *element,
                         program.buffers[ranges[i].buffer.index()].name);
    }
  }
}

void CudaExecutor::State::start_step(CudaProgram& target) {
  if (options.poison_step_arena && step_arena.size_bytes() > 0) {
    BRAID_CUDA_CHECK(cudaMemsetAsync(step_arena.data(), kPoisonByte,
                                     static_cast<size_t>(step_arena.size_bytes()), launch_stream));
  }
  if (tracing || !is_graph() || !target.has_run) {
    target.has_run = true;
    enqueue_step(target, tracing ? &*target.timer : nullptr, one_by_one());
  } else {
    BRAID_CUDA_CHECK(cudaGraphLaunch(target.graph, launch_stream));
  }
}

/// Lets the device finish what it has, whatever comes of it.
void CudaExecutor::State::drain() noexcept {
  ignore_error(cudaStreamSynchronize(launch_stream));
  for (const DeviceStream& stream : streams) {
    ignore_error(cudaStreamSynchronize(stream.handle));
  }
}

std::span<std::byte> CudaExecutor::State::persistent_range(std::string_view buffer,
                                                           int64_t offset_bytes,
                                                           size_t size_bytes) const {
  check(!in_flight, "buffer {} is accessed while a step runs", buffer);
  return persistent_buffers.range(buffer, offset_bytes, size_bytes);
}

CudaExecutor::CudaExecutor(std::vector<Program> programs, MemoryPlan plan, CudaContext& context,
                           CudaExecutorOptions options)
    : state_(std::make_unique<State>(std::move(programs), std::move(plan), context,
                                     std::move(options))) {}

CudaExecutor::~CudaExecutor() = default;

void CudaExecutor::launch(size_t program_index) {
  State& state = *state_;
  check(program_index < state.programs.size(), "program {} of {}", program_index,
        state.programs.size());
  check(!state.in_flight, "a step is launched while another one runs");
  check(!state.failure, "a step is launched after an error");
  CudaProgram& target = state.programs[program_index];
  if (state.tracing) {
    state.traced_program = program_index;
    state.traced_launch = state.num_launches;
  }
  ++state.num_launches;
  state.in_flight = true;
  try {
    state.use_device();
    state.start_step(target);
  } catch (const TaskError& error) {
    state.failure = error.what();
  } catch (const std::exception& error) {
    state.failure =
        fmt::format("rank {}, program {}: {}", state.rank, target.program.name, error.what());
  }
}

void CudaExecutor::wait() {
  State& state = *state_;
  check(state.in_flight, "no step was launched");
  state.in_flight = false;
  if (state.failure) {
    state.drain();
    throw DeviceError(*state.failure);
  }
  try {
    BRAID_CUDA_CHECK(cudaStreamSynchronize(state.launch_stream));
    if (state.tracing) {
      state.traced_times = state.programs[*state.traced_program].timer->times();
    }
  } catch (const DeviceError& error) {
    state.failure = fmt::format(
        "rank {}: a task failed on the device, which tells no more than this: {} (run tasks one by "
        "one, with "
        "sync_each_task, to see which)",
        state.rank, error.what());
    throw DeviceError(*state.failure);
  }
}

void CudaExecutor::write(std::string_view buffer, int64_t offset_bytes,
                         std::span<const std::byte> bytes) {
  const auto target = state_->persistent_range(buffer, offset_bytes, bytes.size());
  if (!bytes.empty()) {
    state_->use_device();
    BRAID_CUDA_CHECK(cudaMemcpyAsync(target.data(), bytes.data(), bytes.size(),
                                     cudaMemcpyHostToDevice, state_->launch_stream));
    BRAID_CUDA_CHECK(cudaStreamSynchronize(state_->launch_stream));
  }
}

void CudaExecutor::read(std::string_view buffer, int64_t offset_bytes, std::span<std::byte> bytes) {
  const auto source = state_->persistent_range(buffer, offset_bytes, bytes.size());
  if (!bytes.empty()) {
    state_->use_device();
    BRAID_CUDA_CHECK(cudaMemcpyAsync(bytes.data(), source.data(), bytes.size(),
                                     cudaMemcpyDeviceToHost, state_->launch_stream));
    BRAID_CUDA_CHECK(cudaStreamSynchronize(state_->launch_stream));
  }
}

void CudaExecutor::set_tracing(bool enabled) {
  check(!state_->in_flight, "tracing is switched while a step runs");
  state_->use_device();
  state_->tracing = enabled;
  for (CudaProgram& target : state_->programs) {
    if (enabled && !target.timer) {
      target.timer.emplace(target.program.tasks.size());
    }
  }
}

RankTimeline CudaExecutor::timeline() const {
  check(state_->traced_program.has_value() && !state_->in_flight, "no step was traced");
  RankTimeline timeline =
      measured_timeline(state_->programs[*state_->traced_program].program, state_->traced_times);
  timeline.step = state_->traced_launch;
  return timeline;
}

int64_t CudaExecutor::allocated_bytes() const {
  return state_->persistent_arena.size_bytes() + state_->step_arena.size_bytes();
}

int64_t CudaExecutor::workspace_bytes() const {
  int64_t size_bytes = state_->found.size_bytes();
  for (const DeviceStream& stream : state_->streams) {
    size_bytes += stream.scratch.size_bytes();
  }
  return size_bytes;
}

}  // namespace braid
