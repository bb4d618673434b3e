#include "backends/cuda/step_enqueuer.h"

#include <cstdint>
#include <set>
#include <utility>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/finite_check.h"
#include "backends/cuda/nvtx_range.h"
#include "ops/meets_others.h"
#include "ops/op.h"

namespace braid {
namespace {

constexpr int64_t kFoundBytes = 256;

void launch(const BoundProgram& bound, TaskId id, std::byte* scratch, cudaStream_t stream) {
  const Task& task = bound.program->tasks[id.index()];
  bound.kernels[id.index()]->launch({.operands = {bound.operands.data() + task.operands_begin,
                                                  bound.program->spec(task).operands.size()},
                                     .scratch = scratch,
                                     .stream = stream});
  cuda_check(cudaGetLastError(), "kernel launch");
}

/// The properties by which a launcher may choose kernels: its own kernel, and the alignment of
/// operands.
using LaunchForm = std::pair<const CudaKernel*, std::vector<uintptr_t>>;

LaunchForm form_of(const BoundProgram& bound, TaskId id) {
  constexpr uintptr_t kLargestAlignment = 256;
  const Task& task = bound.program->tasks[id.index()];
  LaunchForm form{bound.kernels[id.index()], {}};
  for (size_t i = 0; i < bound.program->spec(task).operands.size(); ++i) {
    const auto address = reinterpret_cast<uintptr_t>(bound.operands[task.operands_begin + i]);
    form.second.push_back(address % kLargestAlignment);
  }
  return form;
}

/// The first compute task of each form.
std::vector<TaskId> compute_tasks_by_form(const BoundProgram& bound) {
  const Program& program = *bound.program;
  const auto is_compute = [&](const Task& task) {
    return find_op(program.spec(task).op).op_class != OpClass::kCommunication;
  };
  std::vector<TaskId> tasks;
  std::set<LaunchForm> seen;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    if (bound.kernels[i] != nullptr && seen.insert(form_of(bound, TaskId(i))).second &&
        is_compute(program.tasks[i])) {
      tasks.emplace_back(i);
    }
  }
  return tasks;
}

}  // namespace

StepEnqueuer::StepEnqueuer(int rank, DeviceStreams& streams)
    : rank_(rank),
      streams_(streams),
      found_(kFoundBytes, fmt::format("search for NaN of rank {}", rank)) {}

void StepEnqueuer::enqueue(const BoundProgram& bound, const EnqueueOptions& options) {
  streams_.fork(bound.streams);
  for (size_t i = 0; i < bound.program->tasks.size(); ++i) {
    enqueue_task(bound, TaskId(i), options);
  }
  streams_.join(bound.streams);
}

CudaGraphExec StepEnqueuer::capture(const BoundProgram& bound) {
  const NvtxRange range([&] { return "capture " + bound.program->name; });
  CudaCapture capturing(streams_.launch_stream());
  enqueue(bound, {});
  return {capturing.end(), streams_.launch_stream()};
}

void StepEnqueuer::load_kernels(const BoundProgram& bound) {
  const cudaStream_t stream = streams_.launch_stream();
  try {
    CudaCapture capturing(stream);
    for (const TaskId id : compute_tasks_by_form(bound)) {
      const Task& task = bound.program->tasks[id.index()];
      launch(bound, id, streams_[bound.streams[task.stream.index()]].scratch.data(), stream);
    }
    const CudaGraphExec loaded(capturing.end(), stream);
  } catch (const std::exception&) {  // becomes an error of the task when a step runs it
  }
}

void StepEnqueuer::enqueue_task(const BoundProgram& bound, TaskId id,
                                const EnqueueOptions& options) {
  const Program& program = *bound.program;
  const Task& task = program.tasks[id.index()];
  const DeviceStream& on = streams_[bound.streams[task.stream.index()]];
  const bool has_work = bound.kernels[id.index()] != nullptr;
  const bool is_marked = bound.marks != nullptr && bound.is_marked[id.index()];
  const NvtxRange range([&] { return describe_task(program, id); });
  try {
    for (const EventId event : program.waits_of(task)) {
      BRAID_CUDA_CHECK(cudaStreamWaitEvent(on.handle, streams_.event(event)));
    }
    if (is_marked) {
      bound.marks->begin_task(bound.streams[task.stream.index()], id, on.handle);
    }
    if (options.observer != nullptr) {
      options.observer->start_task(id.index(), on.handle);
    }
    if (has_work) {
      launch(bound, id, on.scratch.data(), on.handle);
    }
    if (options.observer != nullptr) {
      options.observer->end_task(id.index(), on.handle);
    }
    if (task.record.valid()) {
      BRAID_CUDA_CHECK(cudaEventRecord(streams_.event(task.record), on.handle));
    }
    if (is_marked) {  // after the event: tasks that wait for this one do not wait for the mark
      bound.marks->end_task(bound.streams[task.stream.index()], id, on.handle);
    }
    // Other ranks may wait for work that this rank enqueues after a task that waits for them.
    if (options.wait_for_each && !meets_others(program, task)) {
      BRAID_CUDA_CHECK(cudaStreamSynchronize(on.handle));
      if (options.finite_checks && has_work) {
        check_finite(bound, id, on.handle);
      }
    }
  } catch (const std::exception& error) {
    throw TaskError(fmt::format("rank {}, stream {}, task {} ({}): {}", rank_, on.stream.name,
                                id.value, describe_task(program, id), error.what()));
  }
}

void StepEnqueuer::check_finite(const BoundProgram& bound, TaskId id, cudaStream_t stream) {
  const Program& program = *bound.program;
  const Task& task = program.tasks[id.index()];
  const OpSpec& spec = program.spec(task);
  const auto ranges = program.operands_of(task);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!writes(spec.operands[i].access)) {
      continue;
    }
    const auto element = find_non_finite_on_device(bound.operands[task.operands_begin + i],
                                                   ranges[i].end - ranges[i].begin,
                                                   spec.operands[i].dtype, word(), stream);
    if (element) {
      throw_device_error("wrote NaN or infinity to element {} of buffer {}",
                         ranges[i].begin + *element,
                         program.buffers[ranges[i].buffer.index()].name);
    }
  }
}

}  // namespace braid
