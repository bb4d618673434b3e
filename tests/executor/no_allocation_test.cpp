#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "support/cpu_ranks.h"
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

/// Sums over both ranks on one stream, and messages back and forth on two others.
Program communicating_program(int rank) {
  ProgramBuilder builder("step", rank, 2);
  const StreamId comm = builder.add_stream({"comm", StreamKind::kComm, 0});
  const StreamId to = builder.add_stream({"to", StreamKind::kComm, 0});
  const StreamId from = builder.add_stream({"from", StreamKind::kComm, 0});
  builder.add_group({"pair", GroupKind::kData, {0, 1}});
  const auto add = [&](const char* op, std::vector<Attribute> attributes, Access access,
                       StreamId stream, const char* buffer) {
    const BufferId x = builder.add_buffer(
        {buffer, DType::kF32, {5000}, BufferRole::kActivation, Lifetime::kPersistent});
    attributes.insert(attributes.begin(), {"group", int64_t{0}});
    const OpSpec spec{op, std::move(attributes), {{DType::kF32, access, {5000}}}};
    for (int i = 0; i < 10; ++i) {
      builder.add_task(spec, std::array{builder.whole(x)}, stream, {.phase = Phase::kComm});
    }
  };
  const std::vector<Attribute> peer{{"peer", int64_t{1 - rank}}, {"channel", int64_t{0}}};
  add("all_reduce", {}, Access::kReadWrite, comm, "sum");
  add("send", peer, Access::kRead, to, "sent");
  add("recv", peer, Access::kWrite, from, "received");
  return insert_events(builder.take()).program;
}

// Not in the first step either: the transport has been told about all calls.
TEST(CpuExecutor, AllocatesNothingForCommunicationInAnyStep) {
  CpuRanks ranks(2, communicating_program);
  for (int step = 0; step < 3; ++step) {
    const int64_t before = num_allocations;
    ranks[0].launch(0);
    ranks[1].launch(0);
    ranks[0].wait();
    ranks[1].wait();
    EXPECT_EQ(num_allocations, before) << step;
  }
}

}  // namespace
}  // namespace braid
