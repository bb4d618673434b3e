#include "state/piece_pipe.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/errors.h"

namespace braid {

struct PiecePipe::State {
  std::vector<HostBlock> blocks;
  Consume consume;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::span<const std::byte>> waiting;  // submitted, not yet consumed
  std::exception_ptr error;
  bool closed = false;
  size_t num_submitted = 0;
  size_t num_consumed = 0;

  std::thread thread;  // last member: started when all others exist

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return closed || !waiting.empty(); });
      if (closed) {
        return;
      }
      const std::span<const std::byte> piece = waiting.front();
      lock.unlock();
      std::exception_ptr thrown;
      try {
        consume(piece);
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      waiting.pop_front();
      ++num_consumed;
      error = error ? error : thrown;
      changed.notify_all();
      if (error) {
        return;
      }
    }
  }

  /// Waits until at most `num_left` pieces are unfinished.
  void wait_for(size_t num_left) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return error || num_submitted - num_consumed <= num_left; });
    if (error) {
      std::rethrow_exception(error);
    }
  }

  std::span<std::byte> current_block() const { return blocks[num_submitted % blocks.size()].bytes; }
};

PiecePipe::PiecePipe(std::vector<HostBlock> blocks, Consume consume)
    : state_(std::make_unique<State>()) {
  check(!blocks.empty(), "a pipe needs a block");
  state_->blocks = std::move(blocks);
  state_->consume = std::move(consume);
  try {
    state_->thread = std::thread([state = state_.get()] { state->serve(); });
  } catch (const std::system_error& error) {
    throw_device_error("cannot start a thread that writes: {}", error.what());
  }
}

PiecePipe::~PiecePipe() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

std::span<std::byte> PiecePipe::next() {
  state_->wait_for(state_->blocks.size() - 1);
  return state_->current_block();
}

void PiecePipe::submit(size_t size_bytes) {
  const std::span<std::byte> block = state_->current_block();
  check(size_bytes <= block.size(), "a piece of {} bytes in a block of {}", size_bytes,
        block.size());
  {
    const std::lock_guard lock(state_->mutex);
    state_->waiting.push_back(block.first(size_bytes));
    ++state_->num_submitted;
  }
  state_->changed.notify_all();
}

void PiecePipe::finish() {
  state_->wait_for(0);
}

}  // namespace braid
