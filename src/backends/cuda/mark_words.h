#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/cuda/pinned_arena.h"
#include "backends/step_progress.h"
#include "ir/program.h"

namespace braid {

/// The marks of step_progress.h of one rank: a word per stream in page-locked memory of the host,
/// which streams set by memory operations. These take no SM and wait for nothing, and a graph can
/// hold them: marks are numbers of tasks, so those of one step look like those of the next, and the
/// words of a step begin with its number and no marks.
class MarkWords {
 public:
  /// Of so many streams (DeviceStreams). Waits for `stream`. Throws DeviceError if there is no
  /// memory, or the driver has no memory operations.
  MarkWords(size_t num_streams, cudaStream_t stream);

  /// All that `stream` does from here on is of step number `step` (of the launches), which runs
  /// that program, until another one begins. No stream may leave marks of the one in front any
  /// more. Outside of graphs.
  void begin_step(int64_t step, size_t program, cudaStream_t stream) const;
  /// In front of and behind the work of a task, on stream number `number`, which is `stream`.
  void begin_task(size_t number, TaskId task, cudaStream_t stream) const;
  void end_task(size_t number, TaskId task, cudaStream_t stream) const;

  /// What is there now; marks are by stream here. May be called by any thread.
  StepMarks read() const;

 private:
  std::byte* word(size_t index) const;
  uint32_t load(size_t index) const;
  void set_mark(size_t number, uint32_t mark, cudaStream_t stream) const;

  size_t num_streams_;
  PinnedArena words_;
};

}  // namespace braid
