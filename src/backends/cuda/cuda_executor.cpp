#include "backends/cuda/cuda_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "backends/buffer_addresses.h"
#include "backends/cuda/communicators.h"
#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/finite_check.h"
#include "backends/cuda/nvtx_range.h"
#include "backends/cuda/peer_calls.h"
#include "backends/cuda/pinned_arena.h"
#include "backends/cuda/step_tracer.h"
#include "backends/stream_scratch.h"
#include "base/errors.h"
#include "comm/rendezvous.h"
#include "comm/transport.h"
#include "ops/collectives.h"
#include "ops/offload.h"

namespace braid {
namespace {

constexpr int kPoisonByte = 0xFF;  // all bytes of it: NaN in every floating-point type
constexpr int64_t kFoundBytes = 256;
constexpr int kMaxStepsInFlight = 2;

/// A stream of the programs on the device.
struct DeviceStream {
  Stream stream;
  CudaStream handle;
  CudaEvent joined;
  DeviceArena scratch;
};

/// A program with all that a step of it needs.
struct CudaProgram {
  Program program;
  std::vector<std::byte*> operands;        // parallel to Program::operands
  std::vector<const CudaKernel*> kernels;  // by task; null: nothing is to be done
  std::vector<size_t> streams;             // index of the device stream, by stream of the program
  CudaGraphExec graph;
  bool has_run = false;
  int64_t num_ended = 0;                  // steps
  std::chrono::nanoseconds longest = {};  // of them
};

/// A step that was launched, until it is waited for.
struct LaunchedStep {
  CudaProgram* program = nullptr;
  int64_t number = 0;  // of the launches
  std::chrono::steady_clock::time_point launched = {};
  CudaEvent ended;  // behind the step and what is read after it
  NvtxSpan range;
};

/// An error with the task that it came from.
class TaskError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

void check_placements(const Program& program) {
  for (const Buffer& buffer : program.buffers) {
    check(buffer.placement != Placement::kSymmetric,
          "program {}: buffer {} is placed in {} memory, which the CUDA executor does not have",
          program.name, buffer.name, placement_name(buffer.placement));
  }
}

/// Throws InternalError if the task, which communicates with this rank alone, is a message.
void check_is_no_message(const Program& program, TaskId id) {
  const OpSpec& spec = program.spec(program.tasks[id.index()]);
  check(spec.op != kSendOp.name && spec.op != kRecvOp.name,
        "task {} ({}) exchanges messages with itself", id.value, describe_task(program, id));
}

/// A collective of one rank with x and y.
OpSpec copy_spec(const OpSpec& collective) {
  return {.op = "copy", .attributes = {}, .operands = collective.operands};
}

}  // namespace

struct CudaExecutor::State {
  CudaContext& context;
  CudaExecutorOptions options;
  MemoryPlan plan;
  int rank = 0;
  std::unique_ptr<Rendezvous> meeting;           // of this executor alone; null: nobody to meet
  std::unique_ptr<Communicators> communicators;  // before the graphs that use them; null: none
  std::unique_ptr<PeerCalls> copies;             // by copy engines; null: none
  SpecTable specs;                               // of all programs
  std::map<SpecId, CudaKernel> kernels;
  std::map<std::pair<size_t, SpecId>, CudaKernel> calls;  // of other ranks: by program and its spec
  DeviceArena persistent_arena;
  DeviceArena step_arena;
  PinnedArena host_arena;
  DeviceArena found;  // a word for set_finite_checks
  PersistentBuffers persistent_buffers;
  CudaStream launch_stream;  // every step starts and ends on it
  CudaEvent forked;
  std::vector<CudaEvent> events;  // of any program: they take turns
  StreamScratch scratch;          // by stream
  std::vector<DeviceStream> streams;
  std::vector<CudaProgram> programs;

  std::array<LaunchedStep, kMaxStepsInFlight> steps;  // they take turns
  int64_t num_launches = 0;
  int64_t num_waited = 0;                               // of the launches
  std::chrono::steady_clock::time_point last_end = {};  // of the step that was waited for last
  bool finite_checks = false;
  std::optional<std::string> failure;
  int64_t traced_launch = 0;
  std::unique_ptr<StepTracer> tracer;  // last: it goes before the streams and events do

  State(std::vector<Program> sources, MemoryPlan memory, CudaContext& cuda_context,
        CudaExecutorOptions given);
  ~State();

  void use_device() const { BRAID_CUDA_CHECK(cudaSetDevice(context.device())); }
  Arenas arenas() const { return {persistent_arena.data(), step_arena.data(), host_arena.data()}; }
  bool one_by_one() const { return options.sync_each_task || finite_checks; }
  int64_t num_in_flight() const { return num_launches - num_waited; }
  LaunchedStep& oldest_step() { return steps[static_cast<size_t>(num_waited % kMaxStepsInFlight)]; }
  LaunchedStep& newest_step() {
    return steps[static_cast<size_t>((num_launches - 1) % kMaxStepsInFlight)];
  }
  void check_idle(const std::string& what) const {
    check(num_in_flight() == 0, "{} while a step runs", what);
  }
  /// Whether programs are captured: known at construction.
  bool has_windows() const { return communicators != nullptr && communicators->wants_windows(); }
  bool has_graphs() const {
    return options.mode == CudaStepMode::kGraph && !options.sync_each_task;
  }

  void add_program(Program source);
  size_t add_stream(const Stream& stream);
  void set_kernels(CudaProgram& target);
  const CudaKernel* kernel_of(const Program& program, TaskId id);
  const CudaKernel& kernel_for(const OpSpec& spec);
  const CudaKernel& call_for(const Program& program, TaskId id);
  void allocate();
  void bind(CudaProgram& target, const StepPlan& step_plan);
  std::vector<SharedMemory> operand_memory() const;
  std::byte* operand_address(size_t program, TaskId task, size_t operand) const;
  void register_windows();
  void connect_copies();
  void capture(CudaProgram& target);

  void enqueue_step(CudaProgram& target, TaskObserver* observer, bool sync);
  void enqueue_task(const CudaProgram& target, TaskId id, TaskObserver* observer, bool sync);
  void check_finite(const CudaProgram& target, TaskId id, cudaStream_t stream);
  void start_step(CudaProgram& target);
  bool is_traced() const { return tracer != nullptr && tracer->enabled(); }
  StepTracer::Step traced_step(CudaProgram& target, bool as_graph);
  void prepare_tracing();
  bool launches_graph(const CudaProgram& target) const {
    return has_graphs() && !one_by_one() && target.has_run;
  }
  void poison();
  std::optional<std::chrono::nanoseconds> patience(const CudaProgram& program) const;
  void begin_step(CudaProgram& target);
  void wait_for_device(const LaunchedStep& step);
  void end_step(LaunchedStep& step);
  void wait_for_oldest();
  void transfer(std::byte* to, const std::byte* from, size_t size_bytes);
  std::string describe_failure(const DeviceError& error) const;
  void fail(std::string reason);
  bool drain() noexcept;
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
  for (LaunchedStep& step : steps) {
    step.ended = CudaEvent(EventTiming::kNone);
  }
  rank = sources.empty() ? 0 : sources[0].rank;
  if (options.rendezvous != nullptr) {
    meeting = open_place(*options.rendezvous);  // also where this rank has nothing to say
  }
  if (!communicator_keys(sources).empty()) {
    check(meeting != nullptr, "rank {} communicates, and has no rendezvous", rank);
    communicators = std::make_unique<Communicators>(
        sources, *meeting, CommunicatorOptions{.windows = options.nccl_windows});
    copies = std::make_unique<PeerCalls>(rank, sources);
  }
  programs.reserve(sources.size());
  for (Program& source : sources) {
    add_program(std::move(source));
  }
  allocate();  // after the kernels, which may need memory while they measure algorithms
  for (size_t i = 0; i < programs.size(); ++i) {
    bind(programs[i], plan.programs[i]);
  }
  register_windows();
  connect_copies();
  for (CudaProgram& program : programs) {
    if (has_graphs()) {
      capture(program);
    }
  }
}

CudaExecutor::State::~State() {
  if (has_windows()) {  // NCCL lets go of the memory before it is given back
    tracer.reset();
    programs.clear();  // with the graphs, which hold on to communicators
    communicators.reset();
  }
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
  const size_t index = scratch.add(stream);
  if (index == streams.size()) {
    DeviceStream& added = streams.emplace_back();
    added.stream = stream;
    added.handle = CudaStream(stream.priority);
    added.joined = CudaEvent(EventTiming::kNone);
  }
  return index;
}

void CudaExecutor::State::set_kernels(CudaProgram& target) {
  const Program& program = target.program;
  // By spec: few of them, perhaps a million tasks.
  std::vector<std::optional<const CudaKernel*>> known(program.specs.size());
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    check(task.stream.index() < target.streams.size(), "program {}: stream {} of {}", program.name,
          task.stream.value, target.streams.size());
    std::optional<const CudaKernel*> kernel = known[task.spec.index()];
    if (const CudaKernel* const copy =
            copies != nullptr ? copies->kernel(programs.size() - 1, TaskId(i)) : nullptr) {
      kernel = copy;  // each task has its own
    } else if (!kernel) {
      kernel = kernel_of(program, TaskId(i));
      known[task.spec.index()] = kernel;
    }
    target.kernels.push_back(*kernel);
    if (*kernel != nullptr) {
      scratch.need(target.streams[task.stream.index()], (*kernel)->scratch_bytes);
    }
  }
}

/// Null: nothing is to be done.
const CudaKernel* CudaExecutor::State::kernel_of(const Program& program, TaskId id) {
  const OpSpec& spec = program.spec(program.tasks[id.index()]);
  if (does_nothing(spec)) {
    return nullptr;
  }
  if (find_op(spec.op).op_class != OpClass::kCommunication) {
    return &kernel_for(spec);
  }
  if (communicator_key(program, program.tasks[id.index()])) {
    return &call_for(program, id);
  }
  check_is_no_message(program, id);
  return spec.operands.size() == 1 ? nullptr : &kernel_for(copy_spec(spec));  // in place, or to y
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

/// `program` is the last one that was added.
const CudaKernel& CudaExecutor::State::call_for(const Program& program, TaskId id) {
  const Task& task = program.tasks[id.index()];
  const auto [entry, is_new] = calls.try_emplace({programs.size() - 1, task.spec});
  if (is_new) {
    entry->second = communicators->make_kernel(program, task);
  }
  return entry->second;
}

void CudaExecutor::State::allocate() {
  const DeviceAllocator& allocator = has_windows() ? nccl_window_allocator() : cuda_allocator();
  persistent_arena = DeviceArena(plan.persistent_bytes,
                                 fmt::format("persistent buffers of rank {}", rank), allocator);
  step_arena =
      DeviceArena(plan.step_bytes, fmt::format("step buffers of rank {}", rank), allocator);
  host_arena = PinnedArena(plan.host_bytes, fmt::format("buffers on the host of rank {}", rank));
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i].scratch =
        DeviceArena(scratch.size_bytes(i),
                    fmt::format("scratch of rank {}, stream {}", rank, streams[i].stream.name));
  }
  found = DeviceArena(kFoundBytes, fmt::format("search for NaN of rank {}", rank));
}

void CudaExecutor::State::bind(CudaProgram& target, const StepPlan& step_plan) {
  target.operands = operand_addresses(target.program, plan, step_plan, arenas());
  persistent_buffers.add(target.program, step_plan, arenas());
}

/// That peers may reach.
std::vector<SharedMemory> CudaExecutor::State::operand_memory() const {
  return {{persistent_arena.data(), persistent_arena.size_bytes()},
          {step_arena.data(), step_arena.size_bytes()}};
}

std::byte* CudaExecutor::State::operand_address(size_t program, TaskId task, size_t operand) const {
  const CudaProgram& of = programs[program];
  return of.operands[of.program.tasks[task.index()].operands_begin + operand];
}

/// While the arenas are still zero.
void CudaExecutor::State::register_windows() {
  if (!has_windows()) {
    return;
  }
  std::vector<Program> sources;
  for (const CudaProgram& program : programs) {
    sources.push_back(program.program);
  }
  communicators->register_windows(
      sources,
      {.memory = operand_memory(), .address = [this](size_t program, TaskId task, size_t operand) {
         return operand_address(program, task, operand);
       }});
}

/// Other ranks learn where operands are, and their kernels are made.
void CudaExecutor::State::connect_copies() {
  if (copies == nullptr || copies->empty()) {
    return;
  }
  const auto address = [this](size_t program, TaskId task, size_t operand) {
    return operand_address(program, task, operand);
  };
  const auto by_nccl = [this](size_t program, TaskId task) {
    const Program& of = programs[program].program;
    return communicators->make_kernel(of, of.tasks[task.index()]);
  };
  copies->connect({.memory = operand_memory(), .address = address, .otherwise = by_nccl}, *meeting);
}

void CudaExecutor::State::capture(CudaProgram& target) {
  const NvtxRange range([&] { return "capture " + target.program.name; });
  CudaCapture capturing(launch_stream);
  enqueue_step(target, nullptr, /*sync=*/false);
  target.graph = CudaGraphExec(capturing.end(), launch_stream);
}

/// All streams start after what the launch stream did before, and it goes on after them.
void CudaExecutor::State::enqueue_step(CudaProgram& target, TaskObserver* observer, bool sync) {
  BRAID_CUDA_CHECK(cudaEventRecord(forked, launch_stream));
  for (const size_t stream : target.streams) {
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(streams[stream].handle, forked));
  }
  for (size_t i = 0; i < target.program.tasks.size(); ++i) {
    enqueue_task(target, TaskId(i), observer, sync);
  }
  for (const size_t stream : target.streams) {
    BRAID_CUDA_CHECK(cudaEventRecord(streams[stream].joined, streams[stream].handle));
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(launch_stream, streams[stream].joined));
  }
}

/// Any error becomes a TaskError.
void CudaExecutor::State::enqueue_task(const CudaProgram& target, TaskId id, TaskObserver* observer,
                                       bool sync) {
  const Program& program = target.program;
  const Task& task = program.tasks[id.index()];
  const DeviceStream& on = streams[target.streams[task.stream.index()]];
  const NvtxRange range([&] { return describe_task(program, id); });
  try {
    for (const EventId event : program.waits_of(task)) {
      BRAID_CUDA_CHECK(cudaStreamWaitEvent(on.handle, events[event.index()]));
    }
    if (observer != nullptr) {
      observer->start_task(id.index(), on.handle);
    }
    if (const CudaKernel* kernel = target.kernels[id.index()]) {
      kernel->launch({.operands = {target.operands.data() + task.operands_begin,
                                   program.spec(task).operands.size()},
                      .scratch = on.scratch.data(),
                      .stream = on.handle});
      cuda_check(cudaGetLastError(), "kernel launch");
    }
    if (observer != nullptr) {
      observer->end_task(id.index(), on.handle);
    }
    if (task.record.valid()) {
      BRAID_CUDA_CHECK(cudaEventRecord(events[task.record.index()], on.handle));
    }
    if (sync) {
      BRAID_CUDA_CHECK(cudaStreamSynchronize(on.handle));
      if (finite_checks && target.kernels[id.index()] != nullptr) {
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

/// The first step of a program runs task by task, so that a launch that the device refuses is an
/// error of its task.
void CudaExecutor::State::start_step(CudaProgram& target) {
  const bool as_graph = launches_graph(target);
  target.has_run = true;
  if (is_traced()) {
    traced_launch = num_launches - 1;
    tracer->begin(traced_step(target, as_graph));
  }
  poison();
  if (is_traced()) {
    tracer->run();
  } else if (as_graph) {
    const NvtxRange range([&] { return "launch " + target.program.name; });
    BRAID_CUDA_CHECK(cudaGraphLaunch(target.graph, launch_stream));
  } else {
    enqueue_step(target, nullptr, one_by_one());
  }
}

StepTracer::Step CudaExecutor::State::traced_step(CudaProgram& target, bool as_graph) {
  return {.program_index = static_cast<size_t>(&target - programs.data()),
          .program = &target.program,
          .as_graph = as_graph,
          .stream = launch_stream,
          .enqueue = [this, &target](TaskObserver& observer) {
            enqueue_step(target, &observer, one_by_one());
          }};
}

/// Of programs that have run: the first step of another one is no graph.
void CudaExecutor::State::prepare_tracing() {
  for (CudaProgram& target : programs) {
    if (launches_graph(target)) {
      tracer->prepare(traced_step(target, true));
    }
  }
}

void CudaExecutor::State::poison() {
  if (options.poison_step_arena && step_arena.size_bytes() > 0) {
    BRAID_CUDA_CHECK(cudaMemsetAsync(step_arena.data(), kPoisonByte,
                                     static_cast<size_t>(step_arena.size_bytes()), launch_stream));
  }
  if (options.poison_step_arena && host_arena.size_bytes() > 0) {
    // In its turn: the step in front may still use this memory.
    const auto poison_host = [](void* arena) {
      const auto* const host = static_cast<const PinnedArena*>(arena);
      std::memset(host->data(), kPoisonByte, static_cast<size_t>(host->size_bytes()));
    };
    BRAID_CUDA_CHECK(cudaLaunchHostFunc(launch_stream, poison_host, &host_arena));
  }
}

/// After what time a step must be stuck.
std::optional<std::chrono::nanoseconds> CudaExecutor::State::patience(
    const CudaProgram& program) const {
  if (options.timeout_ns <= 0) {
    return std::nullopt;
  }
  constexpr int kMargin = 10;
  const std::chrono::nanoseconds timeout(options.timeout_ns);
  return program.num_ended < 2 ? kMargin * timeout : timeout + kMargin * program.longest;
}

/// Waits for the end of the oldest step. Throws AbortedError if another rank fails meanwhile, whose
/// part of the calls never comes, and TaskError if the step must be stuck.
void CudaExecutor::State::wait_for_device(const LaunchedStep& step) {
  if (communicators == nullptr) {
    BRAID_CUDA_CHECK(cudaEventSynchronize(step.ended));
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto name = [&] {
    return fmt::format("rank {}, step {} of program {}", rank, step.number,
                       step.program->program.name);
  };
  try {
    if (!communicators->wait(step.ended, patience(*step.program))) {
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
      throw TaskError(fmt::format(
          "{} has not ended after {:.3g} s: this rank or one that it communicates with is stuck "
          "(runtime.timeout_s is the limit, beside ten times the longest step before)",
          name(), waited.count()));
    }
  } catch (const AbortedError& error) {
    throw AbortedError(fmt::format("{}: {}", name(), error.what()));
  }
}

/// Waits for the oldest step, which begins when it was launched, or when the one in front of it
/// has ended, as far as the host knows.
void CudaExecutor::State::end_step(LaunchedStep& step) {
  wait_for_device(step);
  step.range.end();
  const auto begin = std::max(step.launched, last_end);
  last_end = std::chrono::steady_clock::now();
  ++step.program->num_ended;
  step.program->longest = std::max(step.program->longest, last_end - begin);
}

/// A copy in the order of the launch stream.
void CudaExecutor::State::transfer(std::byte* to, const std::byte* from, size_t size_bytes) {
  if (size_bytes > 0) {
    use_device();
    BRAID_CUDA_CHECK(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, launch_stream));
  }
}

std::string CudaExecutor::State::describe_failure(const DeviceError& error) const {
  return fmt::format(
      "rank {}: a task failed on the device, which tells no more than this: {} (run again with "
      "the environment variable BRAID_SYNC_TASKS=1 to see which)",
      rank, error.what());
}

/// Other ranks are told, so that nobody waits for this one.
void CudaExecutor::State::fail(std::string reason) {
  failure = std::move(reason);
  if (communicators != nullptr) {
    copies->release();  // first: behind what it holds up may be calls that the abort ends
    communicators->abort(*failure);
  }
}

/// Lets the device finish what it has, whatever comes of it. False where it does not: what waits on
/// windows of NCCL for a rank that has failed never ends.
bool CudaExecutor::State::drain() noexcept {
  if (failure && has_windows()) {
    constexpr std::chrono::seconds kPatience{3};
    const auto until = std::chrono::steady_clock::now() + kPatience;
    const auto runs = [](cudaStream_t stream) {
      return cudaStreamQuery(stream) == cudaErrorNotReady;
    };
    while (runs(launch_stream) ||
           std::ranges::any_of(streams, [&](const auto& each) { return runs(each.handle); })) {
      if (std::chrono::steady_clock::now() > until) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ignore_error(cudaStreamSynchronize(launch_stream));
  for (const DeviceStream& stream : streams) {
    ignore_error(cudaStreamSynchronize(stream.handle));
  }
  return true;
}

CudaExecutor::CudaExecutor(std::vector<Program> programs, MemoryPlan plan, CudaContext& context,
                           CudaExecutorOptions options)
    : state_(std::make_unique<State>(std::move(programs), std::move(plan), context,
                                     std::move(options))) {}

/// What never ends is left behind with its memory: to give that back would wait for it.
CudaExecutor::~CudaExecutor() {
  ignore_error(cudaSetDevice(state_->context.device()));
  if (!state_->drain()) {
    static_cast<void>(state_.release());
  }
}

/// Enqueues the step and what tells its end.
void CudaExecutor::State::begin_step(CudaProgram& target) {
  LaunchedStep& step = steps[static_cast<size_t>(num_launches % kMaxStepsInFlight)];
  step.program = &target;
  step.number = num_launches;
  step.launched = std::chrono::steady_clock::now();
  step.range.begin([&] { return fmt::format("step {} of {}", step.number, target.program.name); });
  ++num_launches;
  try {
    use_device();
    start_step(target);
    BRAID_CUDA_CHECK(cudaEventRecord(step.ended, launch_stream));
  } catch (const TaskError& error) {
    fail(error.what());
  } catch (const std::exception& error) {
    fail(fmt::format("rank {}, program {}: {}", rank, target.program.name, error.what()));
  }
}

void CudaExecutor::launch(size_t program_index) {
  State& state = *state_;
  check(program_index < state.programs.size(), "program {} of {}", program_index,
        state.programs.size());
  check(state.num_in_flight() < max_steps_in_flight(), "a step is launched while {} run",
        state.num_in_flight());
  check(!state.is_traced() || state.num_in_flight() == 0,
        "a traced step is launched while another one runs");
  check(!state.failure, "a step is launched after an error");
  state.begin_step(state.programs[program_index]);
}

int CudaExecutor::max_steps_in_flight() const {
  return kMaxStepsInFlight;
}

bool CudaExecutor::launch_may_wait() const {
  return state_->communicators != nullptr;
}

void CudaExecutor::State::wait_for_oldest() {
  if (failure) {
    drain();
    throw DeviceError(*failure);
  }
  try {
    use_device();
    end_step(oldest_step());
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

void CudaExecutor::wait() {
  State& state = *state_;
  check(state.num_in_flight() > 0, "no step was launched");
  try {
    state.wait_for_oldest();
    ++state.num_waited;
  } catch (...) {
    state.num_waited = state.num_launches;  // all steps are lost
    throw;
  }
}

void CudaExecutor::write(std::string_view buffer, int64_t offset_bytes,
                         std::span<const std::byte> bytes) {
  state_->check_idle(fmt::format("buffer {} is accessed", buffer));
  const auto target = state_->persistent_buffers.range(buffer, offset_bytes, bytes.size());
  state_->transfer(target.data(), bytes.data(), bytes.size());
  BRAID_CUDA_CHECK(cudaStreamSynchronize(state_->launch_stream));
}

void CudaExecutor::read(std::string_view buffer, int64_t offset_bytes, std::span<std::byte> bytes) {
  state_->check_idle(fmt::format("buffer {} is accessed", buffer));
  const auto source = state_->persistent_buffers.range(buffer, offset_bytes, bytes.size());
  state_->transfer(bytes.data(), source.data(), bytes.size());
  BRAID_CUDA_CHECK(cudaStreamSynchronize(state_->launch_stream));
}

void CudaExecutor::enqueue_write(std::string_view buffer, int64_t offset_bytes,
                                 std::span<const std::byte> bytes) {
  State& state = *state_;
  const auto target = state.persistent_buffers.range(buffer, offset_bytes, bytes.size());
  check(!state.failure, "buffer {} is written after an error", buffer);
  try {
    state.transfer(target.data(), bytes.data(), bytes.size());
  } catch (const DeviceError& error) {  // of the step in front
    state.fail(state.describe_failure(error));
    throw DeviceError(*state.failure);
  }
}

void CudaExecutor::enqueue_read(std::string_view buffer, int64_t offset_bytes,
                                std::span<std::byte> bytes) {
  State& state = *state_;
  check(state.num_in_flight() > 0, "buffer {} is to be read after a step, and none was launched",
        buffer);
  const auto source = state.persistent_buffers.range(buffer, offset_bytes, bytes.size());
  if (state.failure) {
    return;  // which the next wait throws
  }
  try {
    state.transfer(bytes.data(), source.data(), bytes.size());
    BRAID_CUDA_CHECK(cudaEventRecord(state.newest_step().ended, state.launch_stream));
  } catch (const DeviceError& error) {
    state.fail(state.describe_failure(error));
  }
}

void CudaExecutor::zero(std::string_view buffer) {
  state_->check_idle(fmt::format("buffer {} is accessed", buffer));
  const auto target = state_->persistent_buffers.whole(buffer);
  state_->use_device();
  BRAID_CUDA_CHECK(cudaMemsetAsync(target.data(), 0, target.size(), state_->launch_stream));
  BRAID_CUDA_CHECK(cudaStreamSynchronize(state_->launch_stream));
}

HostBlock CudaExecutor::host_block(int64_t size_bytes) {
  state_->use_device();
  const auto arena = std::make_shared<PinnedArena>(size_bytes, "a block for transfers");
  return {{arena->data(), static_cast<size_t>(size_bytes)}, arena};
}

void CudaExecutor::set_finite_checks(bool enabled) {
  state_->check_idle("checks are switched");
  state_->finite_checks = enabled;
}

void CudaExecutor::set_tracing(bool enabled) {
  State& state = *state_;
  state.check_idle("tracing is switched");
  state.use_device();
  if (enabled) {
    if (state.tracer == nullptr) {
      state.tracer = std::make_unique<StepTracer>(state.context.device(), state.programs.size());
    }
    state.tracer->enable();
    state.prepare_tracing();
  } else if (state.tracer != nullptr) {
    state.tracer->disable();
  }
}

RankTimeline CudaExecutor::timeline() const {
  check(state_->tracer != nullptr && state_->num_in_flight() == 0, "no step was traced");
  RankTimeline timeline = state_->tracer->timeline();
  timeline.step = state_->traced_launch;
  return timeline;
}

int64_t CudaExecutor::allocated_bytes() const {
  return state_->persistent_arena.size_bytes() + state_->step_arena.size_bytes();
}

int64_t CudaExecutor::allocated_host_bytes() const {
  return state_->host_arena.size_bytes();
}

std::vector<std::string> CudaExecutor::notes() const {
  std::vector<std::string> notes;
  if (state_->copies != nullptr) {
    for (const std::string& why : state_->copies->apart()) {
      notes.push_back("SMs do the communication of copy engines: " + why);
    }
  }
  if (state_->communicators != nullptr) {
    for (const std::string& why : state_->communicators->without_windows()) {
      notes.push_back("no NCCL windows, " + why);
    }
  }
  return notes;
}

int64_t CudaExecutor::workspace_bytes() const {
  int64_t size_bytes = state_->found.size_bytes();
  size_bytes += state_->copies != nullptr ? state_->copies->flag_bytes() : 0;
  for (const DeviceStream& stream : state_->streams) {
    size_bytes += stream.scratch.size_bytes();
  }
  return size_bytes;
}

}  // namespace braid
