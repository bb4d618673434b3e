#include "backends/cuda/comm/call_player.h"

#include <array>
#include <chrono>
#include <utility>

#include "backends/cuda/memory_ops.h"
#include "base/errors.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostStreams = 64;
constexpr size_t kLineBytes = 64;  // a cache line per word

/// The device and the player write words at any time.
std::atomic_ref<uint32_t> as_atomic(std::byte* word) {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(word));
}

/// Time on the clock that profilers use.
int64_t system_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// 0 means no wait.
uint32_t mark_of(size_t wait) {
  return static_cast<uint32_t>(wait + 1);
}

}  // namespace

/// The player's state of a stream.
struct CallPlayer::Slot {
  uint32_t seen = 0;
  bool is_answered = true;
  Clock::time_point end;
};

CallPlayer::CallPlayer(std::vector<int64_t> durations_ns)
    : durations_ns_(std::move(durations_ns)),
      times_(durations_ns_.size()),
      words_(2 * kMostStreams * kLineBytes, "words of emulated calls"),
      thread_([this](const std::stop_token& stop) { play(stop); }) {}

CallPlayer::~CallPlayer() = default;

std::byte* CallPlayer::begun(size_t slot) const {
  return words_.data() + 2 * slot * kLineBytes;
}

std::byte* CallPlayer::answer(size_t slot) const {
  return begun(slot) + kLineBytes;
}

size_t CallPlayer::slot_of(cudaStream_t stream) {
  const size_t slot = slots_.try_emplace(stream, slots_.size()).first->second;
  check(slot < kMostStreams, "emulated calls on more than {} streams", kMostStreams);
  return slot;
}

void CallPlayer::enqueue_begin(size_t wait, cudaStream_t stream) {
  MemoryOps ops;
  ops.set(begun(slot_of(stream)), mark_of(wait));
  ops.enqueue(stream);
}

void CallPlayer::enqueue_end(size_t wait, cudaStream_t stream) {
  const size_t slot = slot_of(stream);
  MemoryOps ops;
  ops.await_equal(answer(slot), mark_of(wait));
  ops.set(begun(slot), 0);
  ops.await_equal(answer(slot), 0);
  ops.enqueue(stream);
}

void CallPlayer::play(const std::stop_token& stop) {
  std::array<Slot, kMostStreams> slots{};
  while (!stop.stop_requested()) {
    for (size_t i = 0; i < slots.size(); ++i) {
      look_at(i, slots.at(i));
    }
  }
}

CallPlayer::Played CallPlayer::last(size_t wait) const {
  const Times& times = times_.at(wait);
  return {.begin_ns = times.begin_ns.load(), .end_ns = times.end_ns.load()};
}

void CallPlayer::look_at(size_t slot, Slot& state) {
  const uint32_t mark = as_atomic(begun(slot)).load(std::memory_order_acquire);
  if (mark != state.seen) {
    state.seen = mark;
    state.is_answered = false;
    state.end = Clock::now();
    if (mark != 0) {
      state.end += std::chrono::nanoseconds(durations_ns_.at(mark - 1) - overhead_ns_.load());
      times_[mark - 1].begin_ns = system_ns() - overhead_ns_ / 2;
    }
  }
  if (!state.is_answered && Clock::now() >= state.end) {
    if (mark != 0) {
      times_[mark - 1].end_ns = system_ns() + overhead_ns_ / 2;
    }
    as_atomic(answer(slot)).store(mark, std::memory_order_release);
    state.is_answered = true;
  }
}

}  // namespace braid
