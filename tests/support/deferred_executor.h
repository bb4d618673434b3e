#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backends/executor.h"
#include "base/errors.h"

namespace braid {

/// Two steps in flight over an executor that supports only one, as on a device: a separate thread
/// does what is enqueued, one item after the other, each after a random delay. A transfer touches
/// the memory of the host only then, so that a test notices inputs that are overwritten too early.
class DeferredExecutor final : public Executor {
 public:
  struct Options {
    uint32_t seed = 1;
    std::chrono::microseconds longest_delay{200};
    int* deepest = nullptr;  ///< gets the most steps that were in flight at once
  };

  DeferredExecutor(std::unique_ptr<Executor> inner, const Options& options)
      : inner_(std::move(inner)), options_(options), random_(options.seed) {
    thread_ = std::thread([this] { work(); });
  }
  /// What was enqueued and not begun is dropped.
  ~DeferredExecutor() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void launch(size_t program_index) override {
    check(num_in_flight() < max_steps_in_flight(), "too many steps are launched");
    check(!tracing_ || num_in_flight() == 0, "a traced step is launched while another one runs");
    check(!failed_, "a step is launched after an error");
    last_call_of_step_.push_back(enqueue([=, this] { inner_->run(program_index); }));
    if (options_.deepest != nullptr) {
      *options_.deepest = std::max(*options_.deepest, num_in_flight());
    }
  }
  int max_steps_in_flight() const override { return 2; }
  bool launch_may_wait() const override { return false; }
  void wait() override {
    check(num_in_flight() > 0, "no step was launched");
    const int64_t last_call = last_call_of_step_.front();
    last_call_of_step_.pop_front();
    try {
      wait_for(last_call);
    } catch (...) {
      failed_ = true;
      last_call_of_step_.clear();
      throw;
    }
  }

  void write(std::string_view buffer, int64_t offset_bytes,
             std::span<const std::byte> bytes) override {
    settle();
    inner_->write(buffer, offset_bytes, bytes);
  }
  void read(std::string_view buffer, int64_t offset_bytes, std::span<std::byte> bytes) override {
    settle();
    inner_->read(buffer, offset_bytes, bytes);
  }
  void enqueue_write(std::string_view buffer, int64_t offset_bytes,
                     std::span<const std::byte> bytes) override {
    enqueue([=, this, name = std::string(buffer)] { inner_->write(name, offset_bytes, bytes); });
  }
  void enqueue_read(std::string_view buffer, int64_t offset_bytes,
                    std::span<std::byte> bytes) override {
    check(num_in_flight() > 0, "a read without a step");
    last_call_of_step_.back() =
        enqueue([=, this, name = std::string(buffer)] { inner_->read(name, offset_bytes, bytes); });
  }
  void zero(std::string_view buffer) override {
    settle();
    inner_->zero(buffer);
  }
  HostBlock host_block(int64_t size_bytes) override { return inner_->host_block(size_bytes); }
  void set_finite_checks(bool enabled) override {
    settle();
    inner_->set_finite_checks(enabled);
  }
  void set_tracing(bool enabled) override {
    settle();
    inner_->set_tracing(enabled);
    tracing_ = enabled;
  }
  RankTimeline timeline() const override {
    check(num_in_flight() == 0, "a step runs");
    return inner_->timeline();
  }
  int64_t allocated_bytes() const override { return inner_->allocated_bytes(); }
  int64_t allocated_host_bytes() const override { return inner_->allocated_host_bytes(); }

 private:
  int num_in_flight() const { return static_cast<int>(last_call_of_step_.size()); }

  int64_t enqueue(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_all();
    return num_enqueued_++;
  }

  /// Until the call with this number is done. Throws what any call threw.
  void wait_for(int64_t call) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_done_ > call; });
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

  /// The others are between steps only.
  void settle() {
    check(num_in_flight() == 0, "a call between steps while one runs");
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_done_ == num_enqueued_; });
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ends_ || num_done_ < num_enqueued_; });
      if (ends_) {
        return;
      }
      const std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      do_late(call);
      lock.lock();
      ++num_done_;
      changed_.notify_all();
    }
  }

  void do_late(const std::function<void()>& call) {
    const auto most = static_cast<uint32_t>(options_.longest_delay.count());
    std::this_thread::sleep_for(std::chrono::microseconds(most == 0 ? 0 : random_() % most));
    if (!error_) {  // which only this thread sets
      try {
        call();
      } catch (...) {
        const std::lock_guard lock(mutex_);
        error_ = std::current_exception();
      }
    }
  }

  std::unique_ptr<Executor> inner_;
  Options options_;
  std::mt19937 random_;  // of the thread
  std::deque<int64_t> last_call_of_step_;
  bool tracing_ = false;
  bool failed_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  int64_t num_enqueued_ = 0;
  int64_t num_done_ = 0;
  bool ends_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace braid
