#include "backends/run_ranks.h"

#include <algorithm>
#include <exception>
#include <string>
#include <thread>
#include <vector>

namespace braid {
namespace {

/// Keeps the first error that is a cause, otherwise the first consequence, and the stuck tasks.
class RootCause {
 public:
  template <class Call>
  bool guard(Call&& call) {
    try {
      call();
      return true;
    } catch (const StuckError& error) {
      stuck_ += fmt::format("; {}", error.what());
      echo_ = echo_ ? echo_ : std::current_exception();
    } catch (const AbortedError&) {
      echo_ = echo_ ? echo_ : std::current_exception();
    } catch (...) {
      cause_ = cause_ ? cause_ : std::current_exception();
    }
    return false;
  }

  void rethrow() const {
    if (!cause_ && !echo_) {
      return;
    }
    try {
      std::rethrow_exception(cause_ ? cause_ : echo_);
    } catch (const StuckError&) {
      throw;
    } catch (const DeviceError& error) {
      if (stuck_.empty()) {
        throw;
      }
      throw DeviceError(error.what() + stuck_);
    }
  }

 private:
  std::exception_ptr cause_;
  std::exception_ptr echo_;
  std::string stuck_;  // a clause per rank
};

bool launches_may_wait(std::span<Executor* const> ranks) {
  return std::ranges::any_of(ranks, [](const Executor* rank) { return rank->launch_may_wait(); });
}

}  // namespace

void run_side_by_side(size_t num_ranks, const std::function<void(size_t rank)>& work) {
  std::vector<RootCause> errors(num_ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 1; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] { errors[rank].guard([&] { work(rank); }); });
  }
  if (num_ranks > 0) {
    errors[0].guard([&] { work(0); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  RootCause first;
  for (const RootCause& error : errors) {
    first.guard([&] { error.rethrow(); });
  }
  first.rethrow();
}

void run_ranks(std::span<Executor* const> ranks, size_t program_index) {
  if (launches_may_wait(ranks)) {
    run_side_by_side(ranks.size(), [&](size_t rank) { ranks[rank]->run(program_index); });
    return;
  }
  launch_ranks(ranks, program_index);
  wait_for_ranks(ranks);
}

void launch_ranks(std::span<Executor* const> ranks, size_t program_index) {
  if (launches_may_wait(ranks)) {
    run_side_by_side(ranks.size(), [&](size_t rank) { ranks[rank]->launch(program_index); });
    return;
  }
  RootCause errors;
  size_t num_launched = 0;
  while (num_launched < ranks.size() &&
         errors.guard([&] { ranks[num_launched]->launch(program_index); })) {
    ++num_launched;
  }
  if (num_launched < ranks.size()) {
    for (Executor* rank : ranks.first(num_launched)) {
      errors.guard([&] { rank->wait(); });
    }
  }
  errors.rethrow();
}

void wait_for_ranks(std::span<Executor* const> ranks) {
  if (launches_may_wait(ranks)) {  // then waits must look for failures concurrently, too
    run_side_by_side(ranks.size(), [&](size_t rank) { ranks[rank]->wait(); });
    return;
  }
  RootCause errors;
  for (Executor* rank : ranks) {
    errors.guard([&] { rank->wait(); });
  }
  errors.rethrow();
}

}  // namespace braid
