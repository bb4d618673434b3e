#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace braid {

/// A 32-bit word that threads wait for: a brief spin, because most hand-offs between the threads of
/// a step take a few microseconds, then a futex. A change that nobody waits for costs no system
/// call.
class WaitWord {
 public:
  explicit WaitWord(uint32_t value = 0) : value_(value) {}

  uint32_t load() const { return value_.load(std::memory_order_acquire); }

  /// Stores a value and wakes all that wait.
  void store(uint32_t value) {
    value_.store(value, std::memory_order_seq_cst);
    wake();
  }

  /// Subtracts 1; if the result is 0, wakes all that wait and returns true.
  bool decrement() {
    const bool is_last = value_.fetch_sub(1, std::memory_order_seq_cst) == 1;
    if (is_last) {
      wake();
    }
    return is_last;
  }

  /// Returns the value as soon as `done(value)`; what the storing thread did before is then
  /// visible.
  template <class Done>
  uint32_t wait(bool spin, Done&& done) const {
    uint32_t value = load();
    if (done(value) || (spin && spin_until(value, done))) {
      return value;
    }
    // seq_cst on both sides: either the storing thread sees this waiter, or this load sees the
    // store.
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    while (!done(value = value_.load(std::memory_order_seq_cst))) {
      value_.wait(value, std::memory_order_acquire);
    }
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    return value;
  }

  /// Whether a thread that waits for `num_threads` others may spin: only if each has a core.
  static bool may_spin(int num_threads) {
    return num_threads <= static_cast<int>(std::thread::hardware_concurrency());
  }

 private:
  static constexpr std::chrono::microseconds kSpin{4};

  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  template <class Done>
  bool spin_until(uint32_t& value, Done&& done) const {
    const auto give_up = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 8; ++i) {
        pause();
        if (done(value = load())) {
          return true;
        }
      }
    } while (std::chrono::steady_clock::now() < give_up);
    return false;
  }

  void wake() {
    if (waiters_.load(std::memory_order_seq_cst) != 0) {
      value_.notify_all();
    }
  }

  std::atomic<uint32_t> value_;
  mutable std::atomic<uint32_t> waiters_{0};
};

/// Hands jobs from one thread to another: one rings, the other answers each ring, and the next ring
/// comes only after the job is done.
class Doorbell {
 public:
  void ring() { word_.store((word_.load() + 1) % kClosed); }
  /// Ends the answering thread's loop.
  void close() { word_.store(kClosed); }

  /// Waits for the next ring. False: closed.
  bool answer(bool spin) {
    answered_ = word_.wait(spin, [this](uint32_t value) { return value != answered_; });
    return answered_ != kClosed;
  }

 private:
  static constexpr uint32_t kClosed = UINT32_MAX;

  WaitWord word_;
  uint32_t answered_ = 0;  // of the answering thread
};

}  // namespace braid
