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

/// Makes a stream wait for as long as it is told, without an SM: the stream sets a word of
/// page-locked memory, a thread of the host sees it, lets the time pass and answers in another
/// word, and the stream awaits the answer. Then the stream takes its word back, and awaits that the
/// answer is, too: each word has one writer, and neither side can miss what the other one did,
/// however late it looks. Can be captured into a graph. The thread polls all the time: it takes a
/// core.
class CallPlayer {
 public:
  /// How long waits number 0, 1, ... take. Throws DeviceError.
  explicit CallPlayer(std::vector<int64_t> durations_ns);
  /// No stream may wait any more.
  ~CallPlayer();
  CallPlayer(const CallPlayer&) = delete;
  CallPlayer& operator=(const CallPlayer&) = delete;

  /// The wait begins when the stream comes to this. Between it and `enqueue_end` of the same wait
  /// the stream may have other work, and no other wait. One thread at a time.
  void enqueue_begin(size_t wait, cudaStream_t stream);
  /// The stream goes on when the time since the beginning is over.
  void enqueue_end(size_t wait, cudaStream_t stream);

  /// Waits end that much earlier than they are told: what beginning and end take by themselves.
  void set_overhead(int64_t overhead_ns) { overhead_ns_ = overhead_ns; }

  /// When a wait began and ended the last time, in ns of the system clock, as the stream sees it:
  /// half the overhead before the thread saw the beginning, and as much behind its answer.
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
  std::jthread thread_;                   // last: ends first
};

}  // namespace braid
