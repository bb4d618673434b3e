#include "memory/live_ranges.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "memory/order_matrix.h"
#include "memory/programs.h"
#include "support/thinned.h"

namespace braid {
namespace {

/// a is written on stream 0, copied on stream 1 to b, which stream 0 reads; c comes afterwards.
Program hand_over_program() {
  ProgramWriter writer;
  const StreamId compute = writer.stream(StreamKind::kCompute);
  const StreamId comm = writer.stream(StreamKind::kComm);
  const BufferId a = writer.buffer(100);
  const BufferId b = writer.buffer(100);
  const BufferId c = writer.buffer(100);
  const BufferId d = writer.buffer(100);
  writer.task(compute, {}, {a});
  writer.task(comm, {a}, {b});
  writer.task(compute, {}, {d});
  writer.task(compute, {b}, {});
  writer.task(compute, {}, {c});
  return writer.take();
}

TEST(TaskOrder, CountsWhatHasFinished) {
  const Program program = hand_over_program();
  const TaskOrder order(program);
  EXPECT_EQ(order.num_finished(0, 1, 0), 1u);  // the copy waits for the write of a
  EXPECT_EQ(order.num_finished(1, 0, 1), 0u);  // d does not wait for the copy
  EXPECT_EQ(order.num_finished(1, 0, 2), 1u);
  EXPECT_EQ(order.num_finished(0, 0, 2), 2u);
  EXPECT_EQ(order.first_position_after(1, 1, 0), 2u);
  EXPECT_EQ(order.first_position_after(0, 2, 1), TaskOrder::kNever);
  EXPECT_EQ(order.first_position_after(0, 2, 0), 2u);
}

TEST(TaskOrder, RunsTheFirstStreamThatMay) {
  const TaskOrder order(hand_over_program());
  const std::vector<size_t> compute_first = {0, 1};
  const auto times = order.run_in_order(compute_first);
  EXPECT_EQ(times[0], (std::vector<uint32_t>{0, 1, 3, 4}));
  EXPECT_EQ(times[1], (std::vector<uint32_t>{2}));
}

TEST(TaskOrder, RefusesAnEventThatNobodyRecords) {
  Program program = hand_over_program();
  for (Task& task : program.tasks) {
    task.record = EventId();
  }
  EXPECT_THAT(message_of<InternalError>([&] { TaskOrder{program}; }),
              ::testing::HasSubstr("before it is recorded"));
}

TEST(LiveRanges, ABufferInFlightIsLive) {
  const Program program = hand_over_program();
  const LiveRanges ranges(program, TaskOrder(program));
  EXPECT_TRUE(ranges.interfere(0, 3));   // the copy may still read a while d is written
  EXPECT_FALSE(ranges.interfere(0, 2));  // c comes after the wait for the copy
  EXPECT_FALSE(ranges.interfere(1, 2));
  EXPECT_TRUE(ranges.interfere(0, 1));
}

TEST(LiveRanges, UntouchedAndPersistentBuffersAreNotUsed) {
  ProgramWriter writer;
  const StreamId stream = writer.stream(StreamKind::kCompute);
  const BufferId untouched = writer.buffer(10);
  const BufferId persistent = writer.buffer(10, BufferRole::kParam, Lifetime::kPersistent);
  const BufferId used = writer.buffer(10);
  writer.task(stream, {persistent}, {used});
  const Program program = writer.take();
  const LiveRanges ranges(program, TaskOrder(program));
  EXPECT_FALSE(ranges.is_used(untouched.index()));
  EXPECT_FALSE(ranges.is_used(persistent.index()));
  EXPECT_TRUE(ranges.is_used(used.index()));
}

TEST(LiveRanges, NeverMissAnInterferenceOfRandomPrograms) {
  int64_t num_free_pairs = 0;
  int64_t num_found_free = 0;
  for (uint64_t seed = 0; seed < thinned_count(1000u, 5); ++seed) {
    const Program program = random_small_program(seed);
    const LiveRanges ranges(program, TaskOrder(program));
    const OrderMatrix matrix(program);
    for (size_t a = 0; a < program.buffers.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (!ranges.is_used(a) || !ranges.is_used(b)) {
          continue;
        }
        const bool interfere = matrix.interfere(a, b);
        num_free_pairs += interfere ? 0 : 1;
        num_found_free += ranges.interfere(a, b) ? 0 : 1;
        ASSERT_TRUE(ranges.interfere(a, b) || !interfere) << "seed " << seed;
        if (ranges.first_task(a) >= ranges.end_task(b)) {
          ASSERT_FALSE(interfere) << "seed " << seed;
        }
      }
    }
  }
  // Only the joint queue, of buffers that begin on several streams at once, may be cautious.
  EXPECT_GT(num_found_free, num_free_pairs * 98 / 100);
}

}  // namespace
}  // namespace braid
