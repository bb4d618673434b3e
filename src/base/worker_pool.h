#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace braid {

/// A fixed set of threads that run the pieces of one kernel at a time; the caller takes part.
/// `num_workers` counts the caller, so a pool of 1 has no threads and no synchronization. One
/// thread calls `run` at a time.
class WorkerPool {
 public:
  explicit WorkerPool(int num_workers);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int num_workers() const { return num_workers_; }

  /// Calls piece(worker, begin, end) for disjoint ranges that cover [0, count), at most one call
  /// per worker, worker in [0, num_workers). Ranges are contiguous, as equal as possible and a
  /// multiple of `grain` long but for the last; fewer workers are used if count < num_workers *
  /// grain. Returns when all pieces are done; rethrows the first exception.
  void run(int64_t count, int64_t grain,
           const std::function<void(int worker, int64_t begin, int64_t end)>& piece);

 private:
  struct State;
  int num_workers_;
  std::unique_ptr<State> state_;
};

}  // namespace braid
