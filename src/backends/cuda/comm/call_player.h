#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <thread>
#include <vector>

#include "backends/cuda/pinned_arena.h"

namespace braid {

/// Makes a stream wait for a given time, without an SM. The stream sets a word of page-locked
/// memory, a thread of the host sees it, waits for the given time and answers in another word, for
/// which the stream waits. Then the stream resets its word, and waits until the answer is reset,
/// too. Each word has one writer, and neither side can miss a change by the other, however late it
/// reads. Can be captured into a graph. The thread polls continuously: it occupies a core.
class CallPlayer {
 public:
  /// The durations of waits number 0, 1, ... Throws DeviceError.
  explicit CallPlayer(std::vector<int64_t> durations_ns);
  /// No stream may be waiting any more.
  ~CallPlayer();
  CallPlayer(const CallPlayer&) = delete;
  CallPlayer& operator=(const CallPlayer&) = delete;

  /// The wait begins when the stream reaches this operation. Until `enqueue_end` of the same wait,
  /// the stream may have other work, but no other wait. One thread at a time.
  void enqueue_begin(size_t wait, cudaStream_t stream);
  /// The stream continues when the duration since the beginning has passed.
  void enqueue_end(size_t wait, cudaStream_t stream);

  /// Waits end earlier by this time, which is the time that beginning and end take by themselves.
  void set_overhead(int64_t overhead_ns) { overhead_ns_ = overhead_ns; }

  /// The last begin and end of a wait in ns of the system clock, as seen by the stream: half the
  /// overhead before the thread saw the beginning, and half the overhead after its answer.
  struct Played {
    int64_t begin_ns = 0;  ///< 0: never
    int64_t end_ns = 0;
  };
  Played last(size_t wait) const;

 private:
  struct Slot;
  struct Times {
    std::atomic<int64_t> begin_ns = 0;
    std::atomic<int64_t> end_ns = 0;
  };
  size_t slot_of(cudaStream_t stream);
  std::byte* begun(size_t slot) const;
  std::byte* answer(size_t slot) const;
  void play(const std::stop_token& stop);
  void look_at(size_t slot, Slot& state);

  std::vector<int64_t> durations_ns_;
  std::atomic<int64_t> overhead_ns_ = 0;
  std::vector<Times> times_;  // by wait
  PinnedArena words_;
  std::map<cudaStream_t, size_t> slots_;  // a stream has one wait at a time
  std::jthread thread_;                   // last member: ends first
};

}  // namespace braid
