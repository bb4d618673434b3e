#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/comm/rank_communication.h"
#include "backends/cuda/cuda_executor.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_streams.h"
#include "backends/cuda/mark_words.h"
#include "backends/cuda/program_kernels.h"
#include "backends/cuda/rank_memory.h"
#include "backends/cuda/step_enqueuer.h"
#include "backends/step_progress.h"
#include "comm/rendezvous.h"
#include "ir/program.h"
#include "memory/memory_plan.h"

namespace braid {

/// Everything that the programs of one rank need on its device, made once: streams, events,
/// kernels, communication, memory, addresses and graphs. When the constructor returns, those of all
/// ranks exist, and no step needs anything more from the driver (RankCommunication::await_others
/// explains why that matters). Destroy it after `drain`, and after all graphs that others made of
/// the programs.
class DeviceRank {
 public:
  /// Parameters as for CudaExecutor; `persistent` as for RankMemory.
  DeviceRank(std::vector<Program> programs, MemoryPlan plan, CudaContext& context,
             const CudaExecutorOptions& options,
             std::optional<DeviceArena> persistent = std::nullopt);
  DeviceRank(const DeviceRank&) = delete;
  DeviceRank& operator=(const DeviceRank&) = delete;

  int rank() const { return rank_; }
  int device() const;
  std::span<const Program> programs() const { return programs_; }

  /// Makes the device current for this thread.
  void use_device() const;

  RankCommunication& communication() { return communication_; }
  const RankCommunication& communication() const { return communication_; }
  RankMemory& memory() { return *memory_; }
  const RankMemory& memory() const { return *memory_; }
  cudaStream_t launch_stream() const { return streams_.launch_stream(); }
  /// A word of device memory to work in, while no step is in flight.
  uint64_t* word() const { return enqueuer_.word(); }

  /// Later work of the launch stream belongs to launch number `step`, of that program.
  void begin_step(int64_t step, size_t program_index);
  /// The marks of its streams for that step. Nullopt if there are no ranks to wait for, or the
  /// driver does not support marks (`notes`).
  std::optional<StepMarks> marks() const;
  /// The progress that the marks show.
  RankProgress progress(const StepMarks& marks) const;
  /// The progress of this rank, which has marks, and of the other ranks that answer soon.
  ProgressOfRanks progress_of_ranks() const;

  /// Whether programs were captured.
  bool has_graphs() const { return has_graphs_; }
  /// Starts a step after all earlier work of the launch stream, which then continues after the
  /// step.
  void launch_graph(size_t program_index);
  /// Starts a step task by task. Throws TaskError.
  void enqueue(size_t program_index, const EnqueueOptions& options);

  /// Waits until the device has finished its work; ignores errors. After a failure, ends the waits
  /// of all steps in flight, and gives up after a while: work that waits on NCCL windows for a rank
  /// that has failed never ends. Then returns false.
  bool drain(bool has_failed) const noexcept;

  /// Like Executor::notes.
  std::vector<std::string> notes() const;

  /// Device memory in addition to RankMemory's.
  int64_t workspace_bytes() const;

 private:
  void add_program(size_t index);
  void make_marks();
  void bind();
  void connect();
  void capture();
  void load_kernels();

  // Later members use earlier ones, and are destroyed first.
  CudaContext& context_;
  std::vector<Program> programs_;
  int rank_;
  bool has_graphs_;
  std::optional<RankMemory> memory_;  // destroyed after NCCL has released it
  RankCommunication communication_;
  ProgramKernels kernels_;
  DeviceStreams streams_;
  std::optional<MarkWords> marks_;
  std::string why_no_marks_;
  StepEnqueuer enqueuer_;
  std::vector<BoundProgram> bound_;    // by program
  std::vector<CudaGraphExec> graphs_;  // by program, if there are any
  std::optional<StandingAnswer> answer_;
};

}  // namespace braid
