#include "base/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace braid {
namespace {

size_t threads_for(size_t count, int num_threads) {
  const size_t machine = std::max(1U, std::thread::hardware_concurrency());
  return std::min(count, num_threads > 0 ? static_cast<size_t>(num_threads) : machine);
}

}  // namespace

void parallel_for(size_t count, int num_threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t failed = count;
  std::exception_ptr failure;
  const auto run = [&] {
    for (size_t index = next++; index < count; index = next++) {
      try {
        work(index);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (index < failed) {
          failed = index;
          failure = std::current_exception();
        }
      }
    }
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < threads_for(count, num_threads); ++i) {
    threads.emplace_back(run);
  }
  run();
  threads.clear();
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace braid
