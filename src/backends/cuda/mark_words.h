#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/cuda/pinned_arena.h"
#include "backends/step_progress.h"
#include "ir/program.h"

namespace braid {

/// The marks of step_progress.h of one rank: a word per stream in page-locked host memory, which
/// streams set by memory operations. These take no SM, do not wait, and can be part of a graph.
/// Marks are task numbers, so they are the same in every step; the words of a step begin with its
/// number and with no marks.
class MarkWords {
 public:
  /// For `num_streams` streams (DeviceStreams). Waits for `stream`. Throws DeviceError if the
  /// allocation fails, or the driver has no memory operations.
  MarkWords(size_t num_streams, cudaStream_t stream);

  /// Later work of `stream` belongs to step number `step` (of the launches), which runs that
  /// program, until the next call. No stream may still write marks of the previous step. Not for
  /// graphs.
  void begin_step(int64_t step, size_t program, cudaStream_t stream) const;
  /// Enqueued before and after the work of a task, on stream number `number`, which is `stream`.
  void begin_task(size_t number, TaskId task, cudaStream_t stream) const;
  void end_task(size_t number, TaskId task, cudaStream_t stream) const;

  /// The current values; here marks are by stream of DeviceStreams. Thread-safe.
  StepMarks read() const;

 private:
  std::byte* word(size_t index) const;
  uint32_t load(size_t index) const;
  void set_mark(size_t number, uint32_t mark, cudaStream_t stream) const;

  size_t num_streams_;
  PinnedArena words_;
};

}  // namespace braid
