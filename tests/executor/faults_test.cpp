// Whatever goes wrong on one rank ends all ranks within seconds, with one message that names rank,
// task and group, and who is missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>

#include "base/expect_error.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "support/cpu_ranks.h"
#include "support/executor_helpers.h"
#include "support/obstacle.h"
#include "support/step_program.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kTimeoutNs = 200'000'000;
constexpr int64_t kStuckNs = 100'000'000;
constexpr std::chrono::seconds kLimit{5};

/// Three ranks sum over all, twice; a fill of `rank` comes first.
Program two_sums(int rank) {
  StepProgram builder(rank, 3);
  const StreamId compute = builder.stream("compute");
  const StreamId comm = builder.stream("comm.data", StreamKind::kComm);
  const GroupId group = builder.group("data", {0, 1, 2});
  const BufferId a = builder.step("a", 100);
  const BufferId b = builder.step("b", 100);
  const BufferId out = builder.persistent("out", 100);
  Label label;
  label.site = builder.site("first");
  builder.fill(compute, a, rank);
  builder.all_reduce(comm, group, a, label);
  builder.fill(compute, b, 10 + rank);
  label.site = builder.site("second");
  builder.all_reduce(comm, group, b, label);
  builder.add(compute, a, b, out);
  return builder.finish();
}

/// The message of a run that must fail in time, and be taken down in time.
std::string failure_of(const CpuRanks::Build& build, int num_ranks, CpuRanksOptions options = {}) {
  const auto start = std::chrono::steady_clock::now();
  options.timeout_ns = kTimeoutNs;
  std::string message;
  {
    CpuRanks ranks(num_ranks, build, options);
    message = message_of<DeviceError>([&] { ranks.run(); });
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLimit);
  EXPECT_EQ(message.find('\n'), std::string::npos);
  return message;
}

std::vector<TaskHook> only_on(size_t rank, TaskHook hook) {
  std::vector<TaskHook> hooks(rank + 1);
  hooks[rank] = std::move(hook);
  return hooks;
}

TEST(Faults, AnExceptionEndsAllRanks) {
  const auto throw_late = only_on(1, [](const OpSpec& spec) {
    if (is_fill_of(spec, 11)) {
      throw std::runtime_error("out of ink");
    }
  });
  EXPECT_EQ(failure_of(two_sums, 3, {.hooks = throw_late}),
            "rank 1, stream compute, task 2 (fill): out of ink");
}

TEST(Faults, ARankThatStoppedIsNamedWithItsLastCall) {
  // Its second sum never comes, as if another rank's program were shorter.
  const auto build = [](int rank) {
    Program program = two_sums(rank);
    if (rank == 2) {
      std::vector<TaskId> kept;
      for (size_t i = 0; i < 3; ++i) {
        kept.emplace_back(i);
      }
      program = insert_events(select_tasks(program, kept)).program;
    }
    return program;
  };
  EXPECT_THAT(
      failure_of(build, 3),
      AllOf(HasSubstr("stream comm.data, task 3 (all_reduce second): rank"),
            HasSubstr("waited 0.2 s in group data, call 2, all_reduce of 100 f32 (all_reduce "
                      "second), for rank 2; rank 2: last call all_reduce of 100 f32 (all_reduce "
                      "first) in group data, call 1, finished")));
}

TEST(Faults, AStuckTaskIsNamedAndNotWaitedFor) {
  Obstacle obstacle;
  const std::string message =
      failure_of(two_sums, 3,
                 {.hooks = only_on(1, obstacle.before_fill_of(11)), .stuck_timeout_ns = kStuckNs});
  obstacle.remove();
  EXPECT_THAT(message,
              AllOf(HasSubstr("stream comm.data, task 3 (all_reduce second): rank"),
                    HasSubstr("waited 0.2 s in group data, call 2"), HasSubstr("for rank 1"),
                    HasSubstr("rank 1: last call all_reduce of 100 f32 (all_reduce first)"),
                    HasSubstr("; rank 1, stream compute, task 2 (fill) still runs 0.1 s after the "
                              "failure")));
}

// Behind its last communication nobody waits for a rank but the caller.
TEST(Faults, AStuckTaskThatNoRankWaitsForIsNamed) {
  Obstacle obstacle;
  for (const size_t stuck : {0, 2}) {
    const std::string message = failure_of(
        two_sums, 3,
        {.hooks = only_on(stuck, obstacle.before_op("add")), .stuck_timeout_ns = kStuckNs});
    const std::string rank = std::to_string(stuck);
    EXPECT_THAT(
        message,
        AllOf(
            StartsWith("rank " + rank + " has not ended the step that rank "),
            HasSubstr(" ended 0.2 s ago; rank " + rank +
                      ": last call all_reduce of 100 f32 (all_reduce second) in group data, call "
                      "2, finished; rank " +
                      rank + ", stream compute, task 4 (add) still runs 0.1 s after the failure")));
  }
  obstacle.remove();
}

TEST(Faults, AStuckTaskBesideAFailureOfItsOwnRankIsNamed) {
  Obstacle obstacle;
  const TaskHook block = obstacle.before_fill_of(7);
  const auto build = [](int) {
    StepProgram builder;
    builder.fill(builder.stream("compute"), builder.step("a", 4), 7);
    builder.fill(builder.stream("copies", StreamKind::kCopy), builder.step("b", 4), 8);
    return builder.finish();
  };
  const auto hook = [block](const OpSpec& spec) {
    if (is_fill_of(spec, 8)) {
      throw std::runtime_error("no paper");
    }
    block(spec);
  };
  const std::string message = failure_of(build, 1, {.hooks = {hook}, .stuck_timeout_ns = kStuckNs});
  obstacle.remove();
  EXPECT_EQ(message,
            "rank 0, stream copies, task 1 (fill): no paper; rank 0, stream compute, task 0 (fill) "
            "still runs 0.1 s after the failure");
}

TEST(Faults, SlowTasksAreWaitedForAndTheirMemoryIsFreed) {
  // It ends long before the 2 s that tasks get.
  const auto hooks = only_on(1, [](const OpSpec& spec) {
    if (is_fill_of(spec, 11)) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(kTimeoutNs * 3 / 2));
    }
  });
  EXPECT_THAT(failure_of(two_sums, 3, {.hooks = hooks}),
              AllOf(HasSubstr("for rank 1"), Not(HasSubstr("still runs"))));
}

/// Two ranks and one communication of x, which `change` spoils on rank 1.
std::string mismatch(const std::function<void(OpSpec&)>& change) {
  const auto build = [&](int rank) {
    ProgramBuilder builder("step", rank, 2);
    const StreamId comm = builder.add_stream({"comm.tensor", StreamKind::kComm, 0});
    builder.add_group({"tensor", GroupKind::kTensor, {0, 1}});
    OpSpec spec{"broadcast",
                to_attributes(RootAttributes{.root = 0}),
                {{DType::kF32, Access::kRead, {8}}, {DType::kF32, Access::kWrite, {8}}}};
    if (rank == 1) {
      change(spec);
    }
    std::vector<BufferRange> ranges;
    for (const OperandSpec& operand : spec.operands) {
      ranges.push_back(builder.whole(
          builder.add_buffer({"buffer" + std::to_string(ranges.size()), operand.dtype,
                              operand.shape, BufferRole::kActivation, Lifetime::kPersistent})));
    }
    builder.add_task(spec, ranges, comm,
                     {.phase = Phase::kComm, .layer = 3, .site = builder.site("mlp")});
    return insert_events(builder.take()).program;
  };
  return failure_of(build, 2);
}

TEST(Faults, RanksThatDisagreeAreNamed) {
  const std::string start =
      "rank 0, stream comm.tensor, task 0 (broadcast layers.3 mlp): group tensor, call 1: rank 0 "
      "asks for "
      "broadcast of 8 f32 with root 0 (broadcast layers.3 mlp), but rank 1 for ";
  const auto shape = [](OpSpec& spec) { spec.operands[0].shape = spec.operands[1].shape = {9}; };
  EXPECT_EQ(mismatch(shape), start + "broadcast of 9 f32 with root 0 (broadcast layers.3 mlp)");
  const auto dtype = [](OpSpec& spec) {
    spec.operands[0].dtype = spec.operands[1].dtype = DType::kBF16;
  };
  EXPECT_EQ(mismatch(dtype), start + "broadcast of 8 bf16 with root 0 (broadcast layers.3 mlp)");
  const auto root = [](OpSpec& spec) {
    spec.attributes = to_attributes(RootAttributes{.root = 1});
  };
  EXPECT_EQ(mismatch(root), start + "broadcast of 8 f32 with root 1 (broadcast layers.3 mlp)");
  const auto op = [](OpSpec& spec) {
    spec.op = "all_to_all";
    spec.attributes = to_attributes(CollectiveAttributes{});
  };
  EXPECT_EQ(mismatch(op), start + "all_to_all of 8 f32 (all_to_all layers.3 mlp)");
}

TEST(Faults, ARecvWithoutASendNamesTheSenderAndItsLastCall) {
  const auto build = [](int rank) {
    ProgramBuilder builder("step", rank, 2);
    const StreamId stream = builder.add_stream({"p2p", StreamKind::kComm, 0});
    builder.add_group({"pipeline", GroupKind::kPipeline, {0, 1}});
    const BufferId x =
        builder.add_buffer({"x", DType::kF32, {8}, BufferRole::kActivation, Lifetime::kPersistent});
    const Access access = rank == 0 ? Access::kRead : Access::kWrite;
    const OpSpec spec{rank == 0 ? "send" : "recv",
                      to_attributes(MessageAttributes{.peer = 1 - rank, .channel = 4}),
                      {{DType::kF32, access, {8}}}};
    for (int microbatch = 0; microbatch < 2 + rank; ++microbatch) {
      builder.add_task(spec, std::array{builder.whole(x)}, stream,
                       {.phase = Phase::kComm, .microbatch = microbatch});
    }
    return insert_events(builder.take()).program;
  };
  EXPECT_EQ(failure_of(build, 2),
            "rank 1, stream p2p, task 2 (recv mb=2): rank 1 waited 0.2 s in group pipeline, "
            "channel 4 from rank 0 to rank 1, message 3, recv of 8 f32 (recv mb=2), for rank 0; "
            "rank 0: last call send of 8 f32 (send mb=1) in group pipeline, channel 4 from rank 0 "
            "to rank 1, message 2, finished");
}

}  // namespace
}  // namespace braid
