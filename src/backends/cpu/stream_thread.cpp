#include "backends/cpu/stream_thread.h"

#include <pthread.h>

#include <exception>
#include <span>
#include <system_error>
#include <utility>

#include "base/errors.h"
#include "base/finite_check.h"

namespace braid {
namespace {

constexpr size_t kLongestThreadName = 15;  // the limit of Linux

/// Marks the task whose kernel is running, for the lifetime of the object.
class RunningMark {
 public:
  RunningMark(std::atomic<uint32_t>& mark, TaskId task) : mark_(mark) {
    mark_.store(task.value, std::memory_order_relaxed);
  }
  ~RunningMark() { mark_.store(TaskId::kNone, std::memory_order_relaxed); }
  RunningMark(const RunningMark&) = delete;
  RunningMark& operator=(const RunningMark&) = delete;

 private:
  std::atomic<uint32_t>& mark_;
};

}  // namespace

StreamThread::StreamThread(Stream stream, int num_workers, StepState& step)
    : stream_(std::move(stream)), step_(step), workers_(num_workers) {}

StreamThread::~StreamThread() {
  if (thread_.joinable()) {
    go_.close();
    thread_.join();
  }
}

void StreamThread::start(int64_t scratch_bytes) {
  const std::string name = fmt::format("r{} {}", step_.rank, stream_.name);
  scratch_ = HostArena(scratch_bytes, "scratch of " + name);
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& error) {
    throw_device_error("rank {}: cannot start a thread for stream {}: {}", step_.rank, stream_.name,
                       error.what());
  }
  // Only debuggers see the name, so a failure does not matter.
  ::pthread_setname_np(thread_.native_handle(), name.substr(0, kLongestThreadName).c_str());
}

void StreamThread::run_step(size_t stream) {
  stream_index_ = stream;
  go_.ring();
}

void StreamThread::serve() {
  while (go_.answer(/*spin=*/false)) {  // steps are far apart
    run_tasks();
    finish_step();
  }
}

void StreamThread::finish_step() {
  if (!step_.num_running.decrement()) {
    return;
  }
  {
    const std::lock_guard lock(step_.failure_mutex);
    if (step_.transport != nullptr) {
      step_.transport->end_step();
    }
  }
  const std::lock_guard lock(step_.finished_mutex);
  step_.finished.notify_all();
}

std::optional<TaskId> StreamThread::running_task() const {
  const uint32_t task = running_task_.load(std::memory_order_relaxed);
  return task == TaskId::kNone ? std::nullopt : std::optional(TaskId(size_t{task}));
}

void StreamThread::run_tasks() {
  PreparedProgram& prepared = *step_.prepared;
  bool good = true;
  for (const PreparedTask& ready : prepared.tasks[stream_index_]) {
    const Task& task = prepared.program.tasks[ready.id.index()];
    good = good && wait_for_events(task) && run(ready);
    if (task.record.valid()) {
      prepared.events[task.record.index()].store(good ? prepared.num_steps
                                                      : PreparedProgram::kPoisoned);
    }
  }
}

/// False if the task must not run.
bool StreamThread::wait_for_events(const Task& task) const {
  const PreparedProgram& prepared = *step_.prepared;
  for (const EventId event : prepared.program.waits_of(task)) {
    const uint32_t reached = prepared.events[event.index()].wait(
        spin_for_events_, [&](uint32_t value) { return value >= prepared.num_steps; });
    if (reached == PreparedProgram::kPoisoned) {
      return false;
    }
  }
  return !step_.abandoned.load(std::memory_order_relaxed);
}

/// False if the task failed.
bool StreamThread::run(const PreparedTask& task) {
  try {
    const int64_t start_ns = step_.tracing ? step_.now_ns() : 0;
    execute(task);
    if (step_.tracing) {
      step_.prepared->times[task.id.index()] = {start_ns, step_.now_ns()};
    }
    if (step_.finite_checks && !task.is_nothing()) {
      check_finite(task.id);
    }
    return true;
  } catch (const AbortedError& error) {
    fail(task.id, error.what(), /*is_echo=*/true);
  } catch (const std::exception& error) {
    fail(task.id, error.what(), /*is_echo=*/false);
  } catch (...) {
    fail(task.id, "an exception of unknown type", /*is_echo=*/false);
  }
  return false;
}

void StreamThread::execute(const PreparedTask& task) {
  const PreparedProgram& prepared = *step_.prepared;
  if (task.communicates()) {
    return communicate(task.call);
  }
  if (task.is_nothing()) {
    return;
  }
  const RunningMark mark(running_task_, task.id);
  task.kernel->run({.operands = prepared.operands_of(prepared.program.tasks[task.id.index()]),
                    .scratch = {scratch_.data(), static_cast<size_t>(scratch_.size_bytes())},
                    .workers = workers_});
}

/// If it waited for a rank that has failed, the error also names the group.
void StreamThread::communicate(size_t index) {
  const PreparedProgram& prepared = *step_.prepared;
  const CommCall& call = prepared.calls[index];
  if (!prepared.emulated.empty()) {
    return run_emulated(prepared.emulated[index], call, step_.stock, prepared.num_steps == 1);
  }
  try {
    step_.transport->run(call);
  } catch (const AbortedError& error) {
    throw AbortedError(fmt::format("in group {}: {}", call.group->name, error.what()));
  }
}

void StreamThread::check_finite(TaskId id) const {
  const PreparedProgram& prepared = *step_.prepared;
  const Task& task = prepared.program.tasks[id.index()];
  const OpSpec& spec = prepared.program.spec(task);
  const auto ranges = prepared.program.operands_of(task);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!writes(spec.operands[i].access)) {
      continue;
    }
    const auto found = find_non_finite(prepared.operands_of(task)[i],
                                       ranges[i].end - ranges[i].begin, spec.operands[i].dtype);
    if (found) {
      throw_device_error("wrote NaN or infinity to element {} of buffer {}",
                         ranges[i].begin + *found,
                         prepared.program.buffers[ranges[i].buffer.index()].name);
    }
  }
}

void StreamThread::fail(TaskId id, const std::string& cause, bool is_echo) {
  const std::string message =
      fmt::format("rank {}, stream {}, task {} ({}): {}", step_.rank, stream_.name, id.value,
                  describe_task(step_.prepared->program, id), cause);
  const std::lock_guard lock(step_.failure_mutex);
  if (!step_.failure) {
    step_.failure = {message, is_echo, std::chrono::steady_clock::now()};
  }
  if (step_.transport != nullptr) {
    step_.transport->abort(message);
  }
}

}  // namespace braid
