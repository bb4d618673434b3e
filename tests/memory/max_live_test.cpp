#include "memory/max_live.h"

#include <gtest/gtest.h>

#include "memory/order_matrix.h"
#include "memory/programs.h"

namespace braid {
namespace {

MaxLive max_live_of(const Program& program) {
  std::vector<int64_t> sizes;
  for (const Buffer& buffer : program.buffers) {
    sizes.push_back(buffer.size_bytes());
  }
  const TaskOrder order(program);
  return find_max_live(program, order, LiveRanges(program, order), sizes);
}

/// Largest total size of buffers that all interfere with each other, by trying every set.
int64_t heaviest_clique_bytes(const Program& program, const OrderMatrix& matrix) {
  std::vector<bool> is_used(program.buffers.size(), false);
  for (const BufferRange& range : program.operands) {
    is_used[range.buffer.index()] = is_used[range.buffer.index()] || range.begin != range.end;
  }
  std::vector<size_t> members;
  int64_t best = 0;
  const auto extend = [&](auto&& self, size_t next, int64_t bytes) -> void {
    best = std::max(best, bytes);
    for (size_t buffer = next; buffer < program.buffers.size(); ++buffer) {
      const bool joins = is_used[buffer] && program.buffers[buffer].lifetime == Lifetime::kStep &&
                         std::all_of(members.begin(), members.end(), [&](size_t member) {
                           return matrix.interfere(member, buffer);
                         });
      if (joins) {
        members.push_back(buffer);
        self(self, buffer + 1, bytes + program.buffers[buffer].size_bytes());
        members.pop_back();
      }
    }
  };
  extend(extend, 0, 0);
  return best;
}

TEST(FindMaxLive, IsALowerBoundOfEveryPlanAndMostlyTheBest) {
  int num_equal = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Program program = random_small_program(seed);
    const int64_t clique_bytes = heaviest_clique_bytes(program, OrderMatrix(program));
    const MaxLive max_live = max_live_of(program);
    ASSERT_LE(max_live.bytes, clique_bytes) << "seed " << seed;
    num_equal += max_live.bytes == clique_bytes ? 1 : 0;
  }
  EXPECT_GT(num_equal, 100);
}

TEST(FindMaxLive, LooksAtOrdersInWhichAStreamIsLate) {
  ProgramWriter writer;
  const StreamId compute = writer.stream(StreamKind::kCompute);
  const StreamId comm = writer.stream(StreamKind::kComm);
  for (int i = 0; i < 10; ++i) {
    const BufferId bucket = writer.buffer(100, BufferRole::kGrad);
    writer.task(compute, {}, {bucket});
    writer.task(compute, {bucket}, {});
    writer.task(comm, {bucket}, {});
  }
  const MaxLive max_live = max_live_of(writer.take());
  EXPECT_EQ(max_live.bytes, 1000);
  EXPECT_EQ(max_live.by_role[static_cast<size_t>(BufferRole::kGrad)], 1000);
}

TEST(FindMaxLive, LooksAtOrdersInWhichAStreamIsEarly) {
  ProgramWriter writer;
  const StreamId compute = writer.stream(StreamKind::kCompute);
  const StreamId comm = writer.stream(StreamKind::kComm);
  for (int i = 0; i < 10; ++i) {
    const BufferId gathered = writer.buffer(100, BufferRole::kGathered);
    writer.task(comm, {}, {gathered});
    writer.task(compute, {gathered}, {});
    writer.task(compute, {gathered}, {});
  }
  EXPECT_EQ(max_live_of(writer.take()).bytes, 1000);
}

}  // namespace
}  // namespace braid
