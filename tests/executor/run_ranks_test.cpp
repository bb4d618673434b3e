#include "backends/run_ranks.h"

#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <vector>

#include "base/expect_error.h"
#include "comm/transport.h"

namespace braid {
namespace {

/// An executor of which only launch and wait matter.
class ScriptedExecutor : public Executor {
 public:
  explicit ScriptedExecutor(
      std::function<void()> on_wait = [] {}, std::function<void()> on_launch = [] {})
      : on_wait_(std::move(on_wait)), on_launch_(std::move(on_launch)) {}

  void launch(size_t program_index) override {
    on_launch_();
    launched.push_back(program_index);
  }
  void wait() override {
    ++num_waits;
    on_wait_();
  }
  void write(std::string_view, int64_t, std::span<const std::byte>) override {}
  void read(std::string_view, int64_t, std::span<std::byte>) override {}
  void enqueue_write(std::string_view, int64_t, std::span<const std::byte>) override {}
  void enqueue_read(std::string_view, int64_t, std::span<std::byte>) override {}
  void zero(std::string_view) override {}
  HostBlock host_block(int64_t) override { return {}; }
  void set_finite_checks(bool) override {}
  void set_tracing(bool) override {}
  RankTimeline timeline() const override { return {}; }
  int64_t allocated_bytes() const override { return 0; }
  int64_t allocated_host_bytes() const override { return 0; }

  std::vector<size_t> launched;
  int num_waits = 0;

 private:
  std::function<void()> on_wait_;
  std::function<void()> on_launch_;
};

TEST(RunRanks, LaunchesAllBeforeItWaitsForAny) {
  std::vector<char> order;
  ScriptedExecutor a([&] { order.push_back('w'); }, [&] { order.push_back('l'); });
  ScriptedExecutor b([&] { order.push_back('w'); }, [&] { order.push_back('l'); });
  Executor* const ranks[] = {&a, &b};
  run_ranks(ranks, 2);
  EXPECT_EQ(order, (std::vector<char>{'l', 'l', 'w', 'w'}));
  EXPECT_EQ(b.launched, std::vector<size_t>{2});
}

TEST(RunRanks, ThrowsTheCauseAndNotItsEchoAndWaitsForAll) {
  ScriptedExecutor echo([] { throw AbortedError("rank 0: rank 1: fire"); });
  ScriptedExecutor cause([] { throw DeviceError("rank 1: fire"); });
  ScriptedExecutor later([] { throw DeviceError("rank 2: smoke"); });
  ScriptedExecutor good;
  Executor* const ranks[] = {&echo, &cause, &later, &good};
  EXPECT_EQ(message_of<DeviceError>([&] { run_ranks(ranks, 0); }), "rank 1: fire");
  EXPECT_EQ(good.num_waits, 1);
}

TEST(RunRanks, ThrowsAnEchoIfThatIsAllThereIs) {
  ScriptedExecutor echo([] { throw AbortedError("stopped from outside"); });
  ScriptedExecutor good;
  Executor* const ranks[] = {&good, &echo};
  EXPECT_EQ(message_of<AbortedError>([&] { run_ranks(ranks, 0); }), "stopped from outside");
}

TEST(RunRanks, SaysWhatIsStuckBehindTheCause) {
  ScriptedExecutor stuck([] { throw StuckError("rank 0, task 3 still runs"); });
  ScriptedExecutor cause([] { throw DeviceError("rank 1: fire"); });
  ScriptedExecutor echo([] { throw AbortedError("rank 2: rank 1: fire"); });
  ScriptedExecutor also_stuck([] { throw StuckError("rank 3, task 5 still runs"); });
  Executor* const ranks[] = {&stuck, &cause, &echo, &also_stuck};
  EXPECT_EQ(message_of<DeviceError>([&] { run_ranks(ranks, 0); }),
            "rank 1: fire; rank 0, task 3 still runs; rank 3, task 5 still runs");
}

TEST(RunRanks, ThrowsWhatIsStuckIfThatIsAllThereIs) {
  ScriptedExecutor stuck([] { throw StuckError("rank 0, task 3 still runs"); });
  Executor* const ranks[] = {&stuck};
  EXPECT_EQ(message_of<StuckError>([&] { run_ranks(ranks, 0); }), "rank 0, task 3 still runs");
}

TEST(RunRanks, WaitsForWhatItLaunchedWhenALaunchFails) {
  ScriptedExecutor good;
  ScriptedExecutor bad([] {}, [] { throw InternalError("no such program"); });
  ScriptedExecutor never;
  Executor* const ranks[] = {&good, &bad, &never};
  EXPECT_EQ(message_of<InternalError>([&] { run_ranks(ranks, 0); }), "no such program");
  EXPECT_EQ(good.num_waits, 1);
  EXPECT_EQ(bad.num_waits, 0);
  EXPECT_TRUE(never.launched.empty());
}

/// One whose launch may wait for those of other ranks.
class MeetingExecutor : public ScriptedExecutor {
 public:
  explicit MeetingExecutor(std::barrier<>& barrier)
      : ScriptedExecutor([&] { barrier.arrive_and_wait(); }, [&] { barrier.arrive_and_wait(); }) {}
  bool launch_may_wait() const override { return true; }
};

TEST(RunRanks, HalvesAreSideBySideWhereRanksWaitForEachOther) {
  std::barrier barrier(2);
  MeetingExecutor a(barrier);
  MeetingExecutor b(barrier);
  Executor* const ranks[] = {&a, &b};
  launch_ranks(ranks, 3);
  launch_ranks(ranks, 4);
  EXPECT_EQ(b.launched, (std::vector<size_t>{3, 4}));
  EXPECT_EQ(a.num_waits, 0);
  wait_for_ranks(ranks);
  wait_for_ranks(ranks);
  EXPECT_EQ(a.num_waits, 2);
}

TEST(RunRanks, AFailedWaitIsTheCauseAndAllAreWaitedFor) {
  ScriptedExecutor echo([] { throw AbortedError("rank 0: rank 1: fire"); });
  ScriptedExecutor cause([] { throw DeviceError("rank 1: fire"); });
  ScriptedExecutor good;
  Executor* const ranks[] = {&echo, &cause, &good};
  launch_ranks(ranks, 0);
  EXPECT_EQ(message_of<DeviceError>([&] { wait_for_ranks(ranks); }), "rank 1: fire");
  EXPECT_EQ(good.num_waits, 1);
}

}  // namespace
}  // namespace braid
