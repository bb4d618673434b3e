#include "backends/cuda/device_rank.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/nvtx_range.h"
#include "base/errors.h"
#include "ops/expert_exchange.h"
#include "ops/meets_others.h"

namespace braid {
namespace {

/// Throws InternalError if programs and plan are not those of one rank.
std::vector<Program> checked(std::vector<Program> programs, const MemoryPlan& plan) {
  check(programs.size() == plan.programs.size(), "{} programs, but a memory plan of {}",
        programs.size(), plan.programs.size());
  for (const Program& program : programs) {
    check(program.rank == programs[0].rank, "programs of ranks {} and {} for one executor",
          programs[0].rank, program.rank);
  }
  return programs;
}

ProgramKernels::ComputeFactory factory_of(const CudaExecutorOptions& options,
                                          CudaContext& context) {
  const CudaKernelFactory make = options.make_kernel ? options.make_kernel : make_cuda_kernel;
  return [make, &context](const OpSpec& spec) { return make(spec, context); };
}

/// A question to other ranks; the answer is a RankProgress.
constexpr const char* kQuestion = "progress of the step";
constexpr std::chrono::milliseconds kAskPatience{500};

RankCommunication communication_of(std::span<const Program> programs,
                                   const CudaExecutorOptions& options) {
  if (options.emulated_peers) {
    return {programs, *options.emulated_peers};
  }
  return {programs, options.rendezvous, {.windows = options.nccl_windows}};
}

/// CUDA does not promise to run branches of a graph at the same time. So a kernel that waits for a
/// message may hold back the one that sends what its sender waits for, and ranks of a pipeline,
/// whose graphs differ, wait forever (seen on 4 GPUs, bench/notes.md). Streams have queues of their
/// own (hardware_queues.h).
bool can_be_graphs(std::span<const Program> programs) {
  return std::ranges::none_of(programs, exchanges_messages);
}

/// Makes its device current.
CudaContext& made_current(CudaContext& context) {
  BRAID_CUDA_CHECK(cudaSetDevice(context.device()));
  return context;
}

}  // namespace

DeviceRank::DeviceRank(std::vector<Program> programs, MemoryPlan plan, CudaContext& context,
                       const CudaExecutorOptions& options, std::optional<DeviceArena> persistent)
    : context_(made_current(context)),
      programs_(checked(std::move(programs), plan)),
      rank_(programs_.empty() ? 0 : programs_[0].rank),
      has_graphs_(options.mode == CudaStepMode::kGraph && !options.sync_each_task &&
                  can_be_graphs(programs_)),
      communication_(communication_of(programs_, options)),
      kernels_(factory_of(options, context), communication_),
      enqueuer_(rank_, streams_),
      bound_(programs_.size()) {
  context_.leave_sms(left_sms(programs_));
  for (size_t i = 0; i < programs_.size(); ++i) {
    add_program(i);
  }
  // After the kernels, which may need memory while algorithms are measured.
  memory_.emplace(std::move(plan), rank_, communication_.allocator(), std::move(persistent));
  streams_.allocate_scratch(rank_);
  make_marks();
  bind();
  connect();
  if (has_graphs_) {
    capture();
  } else if (!communication_.empty()) {
    load_kernels();
  }
  communication_.await_others();
}

int DeviceRank::device() const {
  return context_.device();
}

void DeviceRank::use_device() const {
  BRAID_CUDA_CHECK(cudaSetDevice(context_.device()));
}

void DeviceRank::add_program(size_t index) {
  const Program& program = programs_[index];
  BoundProgram& bound = bound_[index];
  bound.program = &program;
  bound.streams = streams_.add(program);
  bound.kernels = kernels_.add(program, index);
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    if (bound.kernels[i] != nullptr) {
      streams_.need_scratch(bound.streams[program.tasks[i].stream.index()],
                            bound.kernels[i]->scratch_bytes);
    }
  }
}

/// Only if the rank can wait for others; with emulated ranks the marks are not used.
void DeviceRank::make_marks() {
  if (communication_.empty() && !communication_.is_emulated()) {
    return;
  }
  try {
    marks_.emplace(streams_.size(), launch_stream());
  } catch (const DeviceError& error) {
    why_no_marks_ = error.what();
    return;
  }
  for (BoundProgram& bound : bound_) {
    bound.marks = &*marks_;
    bound.is_marked = tasks_that_meet_others(*bound.program);
  }
  if (communication_.is_emulated()) {
    return;
  }
  answer_.emplace(communication_.meeting(), kQuestion,
                  [this] { return to_bytes(progress(*marks())); });
}

void DeviceRank::bind() {
  for (size_t i = 0; i < programs_.size(); ++i) {
    bound_[i].operands = memory_->bind(programs_[i], i);
  }
}

void DeviceRank::connect() {
  const auto address = [this](size_t program, TaskId task, size_t operand) {
    const Task& of = programs_[program].tasks[task.index()];
    return bound_[program].operands[of.operands_begin + operand];
  };
  communication_.connect({.memory = memory_->shared(), .address = address});
}

void DeviceRank::capture() {
  for (const BoundProgram& bound : bound_) {
    graphs_.push_back(enqueuer_.capture(bound));
  }
}

void DeviceRank::load_kernels() {
  for (const BoundProgram& bound : bound_) {
    enqueuer_.load_kernels(bound);
  }
}

void DeviceRank::begin_step(int64_t step, size_t program_index) {
  if (marks_) {
    marks_->begin_step(step, program_index, launch_stream());
  }
}

std::optional<StepMarks> DeviceRank::marks() const {
  if (!marks_ || communication_.is_emulated()) {
    return std::nullopt;
  }
  const StepMarks all = marks_->read();
  StepMarks of_program{.step = all.step, .program = all.program};
  for (const size_t stream : bound_[all.program].streams) {
    of_program.marks.push_back(all.marks[stream]);
  }
  return of_program;
}

RankProgress DeviceRank::progress(const StepMarks& marks) const {
  return progress_of(programs_[marks.program], marks);
}

ProgressOfRanks DeviceRank::progress_of_ranks() const {
  ProgressOfRanks ranks{{rank_, progress(*marks())}};
  for (const auto& [rank, answer] : communication_.meeting().ask_others(kQuestion, kAskPatience)) {
    ranks.emplace(rank, progress_from_bytes(answer));
  }
  return ranks;
}

void DeviceRank::launch_graph(size_t program_index) {
  const NvtxRange range([&] { return "launch " + programs_[program_index].name; });
  BRAID_CUDA_CHECK(cudaGraphLaunch(graphs_.at(program_index), launch_stream()));
}

void DeviceRank::enqueue(size_t program_index, const EnqueueOptions& options) {
  enqueuer_.enqueue(bound_[program_index], options);
}

bool DeviceRank::drain(bool has_failed) const noexcept {
  if (has_failed) {
    const std::chrono::seconds patience(communication_.has_windows() ? 2 : 60);
    const auto until = std::chrono::steady_clock::now() + patience;
    while (streams_.are_busy()) {
      if (std::chrono::steady_clock::now() > until) {
        return false;
      }
      communication_.release_waits();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  streams_.synchronize();
  return true;
}

std::vector<std::string> DeviceRank::notes() const {
  std::vector<std::string> notes = communication_.notes();
  if (!why_no_marks_.empty()) {
    notes.push_back("a step that does not end is named without its task: " + why_no_marks_);
  }
  return notes;
}

int64_t DeviceRank::workspace_bytes() const {
  return enqueuer_.workspace_bytes() + communication_.workspace_bytes() + streams_.scratch_bytes();
}

}  // namespace braid
