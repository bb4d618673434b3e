#include "base/worker_pool.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/wait_word.h"

namespace braid {
namespace {

using Piece = std::function<void(int, int64_t, int64_t)>;

/// The split of [0, count) into `num_pieces` runs of whole grains.
struct Split {
  int64_t count = 0;
  int64_t grain = 1;
  int64_t num_grains = 0;
  int num_pieces = 0;

  Split() = default;
  Split(int64_t total, int64_t grain_size, int num_workers)
      : count(total),
        grain(grain_size),
        num_grains((total + grain_size - 1) / grain_size),
        num_pieces(static_cast<int>(std::min<int64_t>(num_workers, num_grains))) {}

  int64_t begin(int piece) const {
    return std::min(count, num_grains * piece / num_pieces * grain);
  }
  int64_t end(int piece) const { return begin(piece + 1); }
};

}  // namespace

struct WorkerPool::State {
  /// What the caller shares with one worker; on cache lines of its own.
  struct alignas(64) Worker {
    Doorbell go;
    std::exception_ptr error;
    std::thread thread;
  };

  explicit State(int num_workers)
      : spin(WaitWord::may_spin(num_workers)), workers(static_cast<size_t>(num_workers)) {}

  void run_piece(int index) {
    Worker& worker = workers[static_cast<size_t>(index)];
    try {
      (*piece)(index, split.begin(index), split.end(index));
    } catch (...) {
      worker.error = std::current_exception();
    }
  }

  void work(int index) {
    Worker& worker = workers[static_cast<size_t>(index)];
    while (worker.go.answer(spin)) {
      run_piece(index);
      pending.decrement();
    }
  }

  void stop() {
    for (Worker& worker : workers) {
      if (worker.thread.joinable()) {
        worker.go.close();
        worker.thread.join();
      }
    }
  }

  bool spin;
  Split split;
  const Piece* piece = nullptr;
  WaitWord pending;             ///< workers that have not finished the current job
  std::vector<Worker> workers;  ///< [0] is the caller: it has no thread
};

WorkerPool::WorkerPool(int num_workers) : num_workers_(num_workers) {
  check(num_workers >= 1, "a worker pool needs at least 1 worker, not {}", num_workers);
  if (num_workers == 1) {
    return;
  }
  state_ = std::make_unique<State>(num_workers);
  try {
    for (int i = 1; i < num_workers; ++i) {
      state_->workers[static_cast<size_t>(i)].thread =
          std::thread([state = state_.get(), i] { state->work(i); });
    }
  } catch (const std::exception& error) {
    state_->stop();
    throw_device_error("cannot start {} worker threads: {}", num_workers - 1, error.what());
  }
}

WorkerPool::~WorkerPool() {
  if (state_) {
    state_->stop();
  }
}

void WorkerPool::run(int64_t count, int64_t grain, const Piece& piece) {
  check(count >= 0 && grain >= 1, "worker pool: {} items in grains of {}", count, grain);
  const Split split(count, grain, num_workers_);
  if (split.num_pieces <= 1) {
    if (count > 0) {
      piece(0, 0, count);
    }
    return;
  }
  State& state = *state_;
  state.split = split;
  state.piece = &piece;
  state.pending.store(static_cast<uint32_t>(split.num_pieces - 1));
  for (int i = 1; i < split.num_pieces; ++i) {
    state.workers[static_cast<size_t>(i)].go.ring();
  }
  state.run_piece(0);
  state.pending.wait(state.spin, [](uint32_t value) { return value == 0; });
  std::exception_ptr first;
  for (State::Worker& worker : state.workers) {
    const std::exception_ptr error = std::exchange(worker.error, nullptr);
    first = first ? first : error;
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace braid
