#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "support/cpu_executors.h"
#include "support/step_program.h"

namespace {

std::atomic<int64_t> num_allocations{0};

}  // namespace

// Counts what any thread of this test program allocates. Not inlined, because GCC 12 then takes the
// malloc and free inside for a mismatch with new and delete.
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* block = std::malloc(size == 0 ? 1 : size)) {
    return block;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept {
  std::free(block);
}

namespace braid {
namespace {

TEST(CpuExecutor, AllocatesNothingInAStep) {
  StepProgram builder;
  const StreamId compute = builder.stream("compute");
  const StreamId copies = builder.stream("copies", StreamKind::kCopy);
  const BufferId a = builder.step("a", 5000);
  const BufferId b = builder.step("b", 5000);
  const BufferId out = builder.persistent("out", 5000);
  for (int i = 0; i < 20; ++i) {
    builder.fill(compute, a, i);
    builder.copy(copies, a, b);
    builder.add(compute, a, b, out);
  }
  LoneCpuExecutor executor({builder.finish()}, {.num_workers = 2});
  executor.set_tracing(true);
  executor.run(0);
  const int64_t before = num_allocations;
  for (int step = 0; step < 5; ++step) {
    executor.launch(0);
    executor.wait();
  }
  EXPECT_EQ(num_allocations, before);
  EXPECT_GT(before, 0);
}

}  // namespace
}  // namespace braid
