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

/// All that the programs of one rank need on its device, made once: streams, events, kernels,
/// communication, memory, addresses and graphs. When it is made, so are those of all ranks, and no
/// step takes anything more of the driver (RankCommunication::await_others says why that matters).
/// It may go after `drain`, and after all graphs that others made of the programs.
class DeviceRank {
 public:
  /// As CudaExecutor's.
  DeviceRank(std::vector<Program> programs, MemoryPlan plan, CudaContext& context,
             const CudaExecutorOptions& options);
  DeviceRank(const DeviceRank&) = delete;
  DeviceRank& operator=(const DeviceRank&) = delete;

  int rank() const { return rank_; }
  int device() const;
  std::span<const Program> programs() const { return programs_; }

  /// The device becomes the current one of this thread.
  void use_device() const;

  RankCommunication& communication() { return communication_; }
  const RankCommunication& communication() const { return communication_; }
  RankMemory& memory() { return *memory_; }
  const RankMemory& memory() const { return *memory_; }
  cudaStream_t launch_stream() const { return streams_.launch_stream(); }

  /// What the launch stream does from here on is of launch number `step`, of that program.
  void begin_step(int64_t step, size_t program_index);
  /// What its streams have left of that. Nullopt if there is nobody to wait for, or the driver has
  /// no means to (`notes`).
  std::optional<StepMarks> marks() const;
  /// What they mean.
  RankProgress progress(const StepMarks& marks) const;
  /// Of this rank, which has marks, and of those others that answer soon.
  ProgressOfRanks progress_of_ranks() const;

  /// Whether programs were captured.
  bool has_graphs() const { return has_graphs_; }
  /// Starts a step behind all that the launch stream has to do; it goes on behind the step.
  void launch_graph(size_t program_index);
  /// The same task by task. Throws TaskError.
  void enqueue(size_t program_index, const EnqueueOptions& options);

  /// Lets the device finish what it has, whatever comes of it. False where it does not: what waits
  /// on windows of NCCL for a rank that has failed never ends.
  bool drain(bool has_failed) const noexcept;

  /// As Executor::notes.
  std::vector<std::string> notes() const;

  /// Device memory besides RankMemory's.
  int64_t workspace_bytes() const;

 private:
  void add_program(size_t index);
  void make_marks();
  void bind();
  void connect();
  void capture();
  void load_kernels();

  // What comes later needs what is in front of it, and goes first.
  CudaContext& context_;
  std::vector<Program> programs_;
  int rank_;
  bool has_graphs_;
  std::optional<RankMemory> memory_;  // NCCL lets go of it before it is given back
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
