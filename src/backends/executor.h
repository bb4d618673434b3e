#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/host_block.h"
#include "base/dtype.h"
#include "ir/program.h"
#include "memory/memory_plan.h"
#include "trace/timeline.h"

namespace braid {

/// Elements of a persistent buffer.
struct BufferElems {
  std::string_view buffer;
  DType dtype = DType::kF32;  ///< of the buffer
  int64_t begin = 0;
  int64_t num_elems = 0;
};

/// Runs the programs of one rank. One shared test suite checks this contract for every executor:
///  - tasks of a stream run in program order; a task starts after all events that it waits for were
///    recorded;
///  - `launch` may return at once or run the step to its end, depending on the device; `wait`
///    returns when all tasks of the step have finished;
///  - up to `max_steps_in_flight` steps may be launched before waiting for the first of them; each
///    starts when the previous one has ended, and `wait` waits for them in the order of launches;
///  - an error in a task is thrown by the next `wait` as DeviceError naming rank, stream, task and
///    label. Tasks that depend on it do not run. All steps in flight are lost, and the executor can
///    then only be destroyed;
///  - nothing is allocated on the device between construction and destruction, except by
///    `replace_programs`.
///
/// All programs of an executor share persistent buffers by name (training and evaluation use the
/// same weights). Not thread-safe: one thread drives one executor.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Starts one step of program `program_index` (in the order given at construction), after the
  /// steps in flight.
  virtual void launch(size_t program_index) = 0;
  /// The number of steps that may be in flight. A traced step is always alone.
  virtual int max_steps_in_flight() const { return 1; }
  /// Whether `launch` may wait for the launches of other ranks: then threads must launch the ranks
  /// concurrently.
  virtual bool launch_may_wait() const { return false; }
  /// Blocks until the oldest launched step has finished. Throws the first error of the step.
  virtual void wait() = 0;
  /// The time between the end of the last step waited for and the return of its `wait`, because the
  /// caller was busy elsewhere; 0 if the device does not report it.
  virtual std::chrono::nanoseconds lateness() const { return {}; }

  void run(size_t program_index) {
    launch(program_index);
    wait();
  }

  /// Copies host bytes into or out of a persistent buffer, while no step is in flight.
  /// `offset_bytes` counts from the start of the buffer. Throws InternalError for an unknown name
  /// or a range outside the buffer.
  virtual void write(std::string_view buffer, int64_t offset_bytes,
                     std::span<const std::byte> bytes) = 0;
  virtual void read(std::string_view buffer, int64_t offset_bytes, std::span<std::byte> bytes) = 0;
  /// The same in the order of the steps, with others in flight. A write happens after all steps
  /// launched before it and before the next one. Its bytes must be in a `host_block` and must not
  /// change until the `wait` for that next step has returned. A read returns the state after the
  /// last launched step. Its bytes, also in a `host_block`, are valid when the `wait` for that step
  /// has returned, and not before. With a traced step use `write` and `read`: the timeline might
  /// include these transfers.
  virtual void enqueue_write(std::string_view buffer, int64_t offset_bytes,
                             std::span<const std::byte> bytes) = 0;
  virtual void enqueue_read(std::string_view buffer, int64_t offset_bytes,
                            std::span<std::byte> bytes) = 0;
  /// Sets all bytes of a persistent buffer to 0, while no step is in flight. Throws InternalError
  /// for an unknown name.
  virtual void zero(std::string_view buffer) = 0;
  /// `element_hash` of the bits of these elements, one part after the other, while no step is in
  /// flight: the same on all executors, however the elements are divided into parts. This version
  /// reads them through a small block of host memory. Throws like `read`.
  virtual uint64_t hash(std::span<const BufferElems> parts);
  /// Host memory for the fastest transfers, and the only memory allowed for enqueued ones; zeroed.
  /// It must not outlive the executor. Throws DeviceError if the allocation fails.
  virtual HostBlock host_block(int64_t size_bytes) = 0;

  /// In the next steps, checks the outputs of each task for NaN and infinity right after the task
  /// (on GPUs not for tasks that communicate with other ranks: the outputs of the tasks that read
  /// their results are checked). The first one is an error of its task: "...: wrote NaN or infinity
  /// to element 5 of buffer x". Steps are slower and give the same bytes.
  virtual void set_finite_checks(bool enabled) = 0;

  /// Replaces all programs and their plan, with no step in flight. Persistent buffers must be those
  /// of the old programs, at the same places, and keep their contents; memory of steps is allocated
  /// anew. Settings (checks, tracing) stay. An executor that cannot do this throws InternalError.
  /// After any error it can only be destroyed; if memory cannot be allocated, that is a
  /// DeviceError.
  virtual void replace_programs(std::vector<Program> programs, MemoryPlan plan);

  /// Records the start and end of every task in the next steps.
  virtual void set_tracing(bool enabled) = 0;
  /// The last traced step.
  virtual RankTimeline timeline() const = 0;

  /// Bytes allocated on the device for arenas: equal to MemoryPlan::peak_bytes().
  virtual int64_t allocated_bytes() const = 0;
  /// Bytes allocated on the host for step buffers that are placed there: equal to
  /// MemoryPlan::host_bytes.
  virtual int64_t allocated_host_bytes() const { return 0; }

  /// For messages: the last task of its newest step by which this rank communicated with others,
  /// and its place: "stream comm.data, task 31 (all_reduce head) in group data". Empty if there is
  /// none, or if the executor does not know it.
  virtual std::string last_meeting() const { return ""; }

  /// Facts for the user about how programs run on this device, one clause each: features that it
  /// lacks, with their replacements.
  virtual std::vector<std::string> notes() const { return {}; }
};

}  // namespace braid
