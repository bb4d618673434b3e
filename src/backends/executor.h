#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/host_block.h"
#include "ir/program.h"
#include "trace/timeline.h"

namespace braid {

/// Runs the programs of one rank. The contract, which one shared test suite checks for every
/// executor:
///  - tasks of a stream run in program order; a task starts after all events that it waits for were
///  recorded;
///  - `launch` returns at once or runs the step to its end, as the device likes; `wait` returns
///  when all tasks of the step have finished;
///  - up to `max_steps_in_flight` steps may be launched before the first of them is waited for;
///  each starts when the one in front has ended, and `wait` waits for them in the order of
///  launches;
///  - an error in a task surfaces at the next `wait` as DeviceError naming rank, stream, task and
///  label; tasks that depend on
///    it do not run; all steps in flight are lost with it, and the executor is then only good for
///    destruction;
///  - nothing is allocated on the device between construction and destruction.
/// All programs of an executor share persistent buffers by name (training and evaluation use the
/// same weights). Not thread-safe: one thread drives one executor.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Starts one step of program `program_index` (in the order given at construction), after the
  /// steps that are in flight.
  virtual void launch(size_t program_index) = 0;
  /// Steps that may be launched and not waited for. A traced step is always alone.
  virtual int max_steps_in_flight() const { return 1; }
  /// Whether `launch` may wait for the launches of other ranks: then they must be made side by
  /// side.
  virtual bool launch_may_wait() const { return false; }
  /// Blocks until the oldest launched step has finished. Throws the first error of the step.
  virtual void wait() = 0;
  /// For how long the step that was waited for last had ended when its `wait` returned, because
  /// the caller was elsewhere; 0 where the device does not tell.
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
  /// The same in the order of the steps, with others in flight. A write is done after all steps
  /// that were launched before it and in front of the next one: its bytes, of a `host_block`, must
  /// stay as they are until the `wait` for that next step has returned. A read gets what the step
  /// that was launched last leaves behind: its bytes, also of a `host_block`, are there when the
  /// `wait` for that step has returned, and not before. Around a traced step, whose timeline may
  /// show them, use `write` and `read`.
  virtual void enqueue_write(std::string_view buffer, int64_t offset_bytes,
                             std::span<const std::byte> bytes) = 0;
  virtual void enqueue_read(std::string_view buffer, int64_t offset_bytes,
                            std::span<std::byte> bytes) = 0;
  /// Sets all bytes of a persistent buffer to 0, while no step is in flight. Throws InternalError
  /// for an unknown name.
  virtual void zero(std::string_view buffer) = 0;
  /// Host memory that transfers are fastest with, and the only one that they may be enqueued for;
  /// zeroed. It must not outlive the executor. Throws DeviceError if there is none.
  virtual HostBlock host_block(int64_t size_bytes) = 0;

  /// Looks for NaN and infinity in what each task wrote, right after the task, in the next steps
  /// (on GPUs not for tasks that meet other ranks: what reads their result is looked at).
  /// The first is an error of its task: "...: wrote NaN or infinity to element 5 of buffer x".
  /// Steps are slower and give the same bytes.
  virtual void set_finite_checks(bool enabled) = 0;

  /// Records start and end of every task in the next steps.
  virtual void set_tracing(bool enabled) = 0;
  /// The last traced step.
  virtual RankTimeline timeline() const = 0;

  /// Bytes allocated on the device for arenas: equal to MemoryPlan::peak_bytes().
  virtual int64_t allocated_bytes() const = 0;
  /// Bytes allocated on the host for step buffers that are placed there: equal to
  /// MemoryPlan::host_bytes.
  virtual int64_t allocated_host_bytes() const { return 0; }

  /// The task by which this rank met others last in its newest step, and where, for messages:
  /// "stream comm.data, task 31 (all_reduce head) in group data". Empty if there is none, or the
  /// executor does not know.
  virtual std::string last_meeting() const { return ""; }

  /// What a user should know of how programs run here, one clause each: where a device cannot do
  /// what they ask for and something else takes its place.
  virtual std::vector<std::string> notes() const { return {}; }
};

}  // namespace braid
