// Each allocation of a save or a load fails once.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <new>
#include <stdexcept>
#include <string>

#include "base/errors.h"
#include "checkpoint/samples.h"

namespace {

constexpr int64_t kNever = INT64_MAX;
std::atomic<int64_t> allocations_left{kNever};

void* allocate(size_t size) noexcept {
  return allocations_left.fetch_sub(1) == 1 ? nullptr : std::malloc(size == 0 ? 1 : size);
}

}  // namespace

// For all threads of this test program. Not inlined, because GCC 12 then takes the malloc and free
// inside for a mismatch with new and delete.
[[gnu::noinline]] void* operator new(size_t size) {
  if (void* block = allocate(size)) {
    return block;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return allocate(size);
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept {
  std::free(block);
}

namespace braid {
namespace {

/// The number of allocations of `work`.
template <class Work>
int64_t num_allocations(const Work& work) {
  allocations_left = kNever;
  work();
  return kNever - allocations_left.exchange(kNever);
}

enum class End { kDone = 0, kError = 1, kTerminated = 2 };

/// How `work` ends in a child process in which allocation number `failing` fails. kTerminated: the
/// JSON library's destructors allocate, and an exception of theirs ends the process.
template <class Work>
End end_of(int64_t failing, const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::set_terminate([] { ::_exit(static_cast<int>(End::kTerminated)); });
    allocations_left = failing + 1;
    try {
      work();
    } catch (const std::bad_alloc&) {
      ::_exit(static_cast<int>(End::kError));
    } catch (const DataError&) {
      ::_exit(static_cast<int>(End::kError));
    }
    ::_exit(static_cast<int>(End::kDone));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) <= 2) << "allocation " << failing;
  return static_cast<End>(WEXITSTATUS(status));
}

constexpr int64_t kTried = 200;  // of some hundred allocations, evenly

TEST(AllocationFaults, ASaveLeavesACompleteCheckpoint) {
  const SampleTraining before(20);
  const SampleTraining next(30);
  const MemoryFolder counted;
  const int64_t all = num_allocations([&] { next.save_cut(counted / "c"); });
  std::map<End, int> ends;
  for (int64_t i = 0; i < all; i += std::max<int64_t>(1, all / kTried)) {
    const MemoryFolder temp;
    const std::string folder = temp / "c";
    before.save(folder);
    const End end = end_of(i, [&] { next.save_cut(folder, {.keep = 1}); });
    ++ends[end];
    const LoadedCheckpoint latest(find_latest_checkpoint(folder).value());
    EXPECT_TRUE(next.equals(latest) || (end != End::kDone && before.equals(latest))) << i;
    const SampleTraining last(40);
    last.save(folder);
    EXPECT_TRUE(last.equals(LoadedCheckpoint(find_latest_checkpoint(folder).value()))) << i;
  }
  EXPECT_GT(ends[End::kError], 4 * ends[End::kTerminated]);
}

TEST(AllocationFaults, ALoadIsAnErrorOrTheWholeCheckpoint) {
  const SampleTraining training(20);
  const MemoryFolder temp;
  const std::string path = training.save_cut(temp / "c");
  const auto load = [&] {
    const LoadedCheckpoint loaded(path);
    if (!training.equals(loaded)) {
      throw std::logic_error("other tensors");
    }
  };
  const int64_t all = num_allocations(load);
  std::map<End, int> ends;
  for (int64_t i = 0; i < all; i += std::max<int64_t>(1, all / kTried)) {
    ++ends[end_of(i, load)];
  }
  EXPECT_GT(ends[End::kError], 4 * ends[End::kTerminated]);
  load();
}

}  // namespace
}  // namespace braid
