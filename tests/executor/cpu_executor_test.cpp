#include "backends/cpu/cpu_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>

#include "base/expect_error.h"
#include "base/worker_pool.h"
#include "passes/streams/insert_events.h"
#include "support/cpu_ranks.h"
#include "support/executor_helpers.h"
#include "support/random_program.h"
#include "support/step_program.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// Sums rank + 1 over two ranks in `size` elements, on a comm stream, while compute goes on.
Program summing_program(int rank, int64_t size = 1000) {
  StepProgram builder(rank, 2);
  const StreamId compute = builder.stream("compute");
  const StreamId comm = builder.stream("dp", StreamKind::kComm);
  const GroupId group = builder.group("data", {0, 1});
  const BufferId grad = builder.step("grad", size);
  const BufferId other = builder.step("other", size);
  const BufferId out = builder.persistent("out", size);
  Label label;
  label.layer = 5;
  label.site = builder.site("bucket.0");
  builder.fill(compute, grad, rank + 1);
  builder.all_reduce(comm, group, grad, label);
  builder.fill(compute, other, 100);
  builder.add(compute, grad, other, out);
  return builder.finish();
}

TEST(CpuExecutor, SumsOverTheRanks) {
  CpuRanks ranks(2, [](int rank) { return summing_program(rank); });
  for (int step = 0; step < 20; ++step) {
    ranks.run();
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(read_floats(ranks[rank], "out", 1000), Each(103.0f));
    }
  }
}

TEST(CpuExecutor, RandomProgramsOfSeveralRanksAreBitwiseRepeatable) {
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const auto build = [&](int rank) {
      Program program = random_program(
          seed, {.num_tasks = 60, .num_streams = 4, .num_ranks = 3, .max_elems = 50});
      program.rank = rank;
      program.groups[0].ranks = {rank};  // "alone"
      for (Task& task : program.tasks) {
        if (program.spec(task).op == "all_reduce") {
          task.stream = StreamId(size_t{3});  // one order for all
        }
      }
      return insert_events(std::move(program)).program;
    };
    const Program program = build(0);
    std::vector<std::vector<float>> first;
    for (uint32_t run = 0; run < 4; ++run) {
      std::vector<TaskHook> hooks;
      for (uint32_t rank = 0; rank < 3; ++rank) {
        hooks.push_back(random_delays(seed * 100 + run * 10 + rank));
      }
      CpuRanks ranks(3, build, {.hooks = hooks});
      std::vector<std::vector<float>> results;
      for (size_t rank = 0; rank < 3; ++rank) {
        for (const auto& [name, values] : random_values(program, seed + rank)) {
          write_floats(ranks[rank], name, values);
        }
      }
      ranks.run();
      for (size_t rank = 0; rank < 3; ++rank) {
        for (const auto& [name, values] : random_values(program, 0)) {
          results.push_back(read_floats(ranks[rank], name, values.size()));
        }
      }
      first = run == 0 ? results : first;
      EXPECT_EQ(results, first) << "seed " << seed;
    }
  }
}

TEST(CpuExecutor, AnErrorOnOneRankReleasesTheOthers) {
  const TaskHook fail = [](const OpSpec& spec) {
    if (spec.op == "fill") {
      throw std::runtime_error("out of ink");
    }
  };
  const auto build = [](int rank) { return summing_program(rank); };
  const std::string cause = "rank 1, stream compute, task 0 (fill): out of ink";
  CpuRanks ranks(2, build, {.hooks = {TaskHook{}, fail}});
  EXPECT_EQ(message_of<DeviceError>([&] { ranks.run(); }), cause);

  CpuRanks again(2, build, {.hooks = {TaskHook{}, fail}});
  again[0].launch(0);
  again[1].launch(0);
  EXPECT_EQ(message_of<AbortedError>([&] { again[0].wait(); }),
            "rank 0, stream dp, task 1 (all_reduce layers.5 bucket.0): in group data: " + cause);
  EXPECT_EQ(message_of<DeviceError>([&] { again[1].wait(); }), cause);
}

TEST(CpuExecutor, ARankThatNeverComesIsNamed) {
  CpuRanks ranks(2, [](int rank) { return summing_program(rank); }, {.timeout_ns = 5'000'000});
  EXPECT_THAT(message_of<DeviceError>([&] { ranks[0].run(0); }),
              AllOf(HasSubstr("rank 0, stream dp, task 1 (all_reduce layers.5 bucket.0): "),
                    HasSubstr("for rank 1; rank 1: no call yet")));
}

TEST(CpuExecutor, RanksThatDisagreeAreNamed) {
  CpuRanks ranks(2, [](int rank) { return summing_program(rank, 10 + rank); });
  EXPECT_THAT(message_of<DeviceError>([&] { ranks.run(); }),
              HasSubstr("group data, call 1: rank 0 asks for all_reduce of 10 f32 (all_reduce "
                        "layers.5 bucket.0), but rank 1 for all_reduce of 11 f32"));
}

TEST(CpuExecutor, DestroyingItWhileItWaitsForAnotherRankReleasesBoth) {
  CpuRanks ranks(2, [](int rank) { return summing_program(rank); });
  ranks[0].launch(0);
  ranks.destroy(0);
  // Whether rank 0 had come to its all-reduce or not, rank 1 does not wait for it.
  EXPECT_THAT(message_of<AbortedError>([&] { ranks[1].run(0); }),
              HasSubstr("rank 0 gave up in the middle of a step"));
}

TEST(CpuExecutor, TracesCollectivesWithBytesAndGroup) {
  CpuRanks ranks(2, [](int rank) { return summing_program(rank); });
  ranks[1].set_tracing(true);
  ranks.run();
  ranks.run();
  const RankTimeline timeline = ranks[1].timeline();
  EXPECT_EQ(timeline.rank, 1);
  EXPECT_EQ(timeline.step, 1);
  ASSERT_EQ(timeline.tasks.size(), 4u);
  const TimelineTask& reduce = timeline.tasks[3];  // streams come one after the other
  EXPECT_TRUE(reduce.communication);
  EXPECT_EQ(reduce.bytes, 4000);
  EXPECT_EQ(reduce.group, GroupKind::kData);
  EXPECT_EQ(reduce.layer, 5);
  EXPECT_EQ(timeline.names[reduce.name], "all_reduce bucket.0");
  EXPECT_EQ(timeline.tasks[0].bytes, 0);
}

/// Copies a step buffer that nothing has written.
Program undefined_read() {
  ProgramBuilder builder("step", 0, 1);
  const BufferId undefined =
      builder.add_buffer({"undefined", DType::kF32, {8}, BufferRole::kActivation});
  const BufferId out =
      builder.add_buffer({"out", DType::kF32, {8}, BufferRole::kActivation, Lifetime::kPersistent});
  const OpSpec spec{
      "copy", {}, {{DType::kF32, Access::kRead, {8}}, {DType::kF32, Access::kWrite, {8}}}};
  const BufferRange ranges[] = {builder.whole(undefined), builder.whole(out)};
  builder.add_task(spec, ranges, builder.add_stream({"compute", StreamKind::kCompute, 0}), {});
  return insert_events(builder.take()).program;
}

TEST(CpuExecutor, PoisonShowsReadsOfUndefinedMemory) {
  LoneCpuExecutor plain({undefined_read()}, {});
  plain.run(0);
  EXPECT_THAT(read_floats(plain, "out", 8), Each(0.0f));
  LoneCpuExecutor poisoned({undefined_read()}, {.poison_step_arena = true});
  poisoned.run(0);
  EXPECT_THAT(read_floats(poisoned, "out", 8), Each(::testing::IsNan()));
}

Program infinite_program() {
  StepProgram builder;
  const StreamId stream = builder.stream("compute");
  const BufferId a = builder.step("activation", 6);
  const BufferId out = builder.persistent("out", 6);
  builder.fill(stream, a, 3e38);
  builder.add(stream, a, a, out);
  return builder.finish();
}

TEST(CpuExecutor, FiniteChecksNameTheFirstTaskAndBufferWithNanOrInfinity) {
  LoneCpuExecutor careless({infinite_program()}, {});
  careless.run(0);
  EXPECT_THAT(read_floats(careless, "out", 6), Each(std::numeric_limits<float>::infinity()));
  careless.set_finite_checks(true);
  EXPECT_EQ(message_of<DeviceError>([&] { careless.run(0); }),
            "rank 0, stream compute, task 1 (add): wrote NaN or infinity to element 0 of buffer "
            "out");
}

TEST(CpuExecutor, GivesKernelsTheirWorkersAndScratch) {
  StepProgram builder;
  const BufferId out = builder.persistent("out", 4);
  const BufferId other = builder.persistent("other", 4);
  builder.fill(builder.stream("compute"), out, 1);
  builder.fill(builder.stream("copies", StreamKind::kCopy), other, 2);
  const Program program = builder.finish();
  std::atomic<int> made_for{0};
  std::atomic<int> bad{0};
  const auto factory = [&](size_t scratch_bytes) {
    return [&, scratch_bytes](const OpSpec& spec, int num_workers) {
      made_for += num_workers;
      const int expected = is_fill_of(spec, 1) ? 3 : 1;
      const auto run = [&, expected, scratch_bytes](const KernelArgs& args) {
        bad += args.workers.num_workers() != expected;
        bad += args.scratch.size() < scratch_bytes;
        bad += reinterpret_cast<uintptr_t>(args.scratch.data()) % 64 != 0;
      };
      return CpuKernel{run, scratch_bytes};
    };
  };
  LoneCpuExecutor executor({program}, {.num_workers = 3, .make_kernel = factory(1000)});
  executor.run(0);
  EXPECT_EQ(bad, 0);
  EXPECT_EQ(made_for, 3 + 1);
  const LoneCpuExecutor without({program}, {.num_workers = 3, .make_kernel = factory(0)});
  EXPECT_EQ(executor.workspace_bytes() - without.workspace_bytes(), 2 * 1000);
  EXPECT_GT(without.workspace_bytes(), 0);
}

TEST(CpuExecutor, MakesOneKernelPerSpec) {
  StepProgram builder;
  const StreamId stream = builder.stream("compute");
  const BufferId out = builder.persistent("out", 4);
  for (int i = 0; i < 10; ++i) {
    builder.fill(stream, out, i % 2);
  }
  const Program program = builder.finish();
  int num_made = 0;
  const auto factory = [&](const OpSpec& spec, int num_workers) {
    ++num_made;
    return make_cpu_kernel(spec, num_workers);
  };
  LoneCpuExecutor executor({program, program}, {.make_kernel = factory});
  EXPECT_EQ(num_made, 2);
}

TEST(CpuExecutor, ABufferThatNoTaskTouchesNeedsNoMemory) {
  StepProgram builder;
  const StreamId stream = builder.stream("compute");
  const BufferId out = builder.persistent("out", 4);
  const BufferId used = builder.step("used", 4);
  builder.fill(stream, used, 3);
  builder.copy(stream, used, out);
  builder.step("unused", 1'000'000);
  builder.on_host("unused on the host", 1'000'000);
  const Program program = builder.finish();
  const MemoryPlan plan = plan_of({program});
  EXPECT_EQ(plan.step_bytes, kBufferAlignmentBytes);
  EXPECT_EQ(plan.host_bytes, 0);
  CpuExecutor executor({program}, plan, {});
  executor.run(0);
  EXPECT_THAT(read_floats(executor, "out", 4), Each(3.0f));
}

TEST(CpuExecutor, RefusesWhatDoesNotFitTogether) {
  const Program lone = infinite_program();
  const auto make = [](std::vector<Program> programs, const std::vector<Program>& planned) {
    return CpuExecutor(std::move(programs), plan_of(planned), {});
  };
  EXPECT_THAT(message_of<InternalError>([&] {
                make({lone}, {lone, lone});
              }),
              HasSubstr("1 programs, but a memory plan of 2"));
  MemoryPlan small = plan_of({lone});
  small.step_bytes = 16;
  EXPECT_THAT(message_of<InternalError>([&] { CpuExecutor({lone}, small, {}); }),
              HasSubstr("buffer activation of 24 bytes at offset 0 is outside its arena of 16"));
  const Program sum = summing_program(0);
  EXPECT_THAT(message_of<InternalError>([&] { make({sum}, {sum}); }), HasSubstr("no transport"));
  Program elsewhere = lone;
  elsewhere.rank = 1;
  EXPECT_THAT(message_of<InternalError>([&] {
                make({lone, elsewhere}, {lone, elsewhere});
              }),
              HasSubstr("ranks 0 and 1"));
  Program twice = lone;
  twice.streams.push_back(twice.streams[0]);
  EXPECT_THAT(message_of<InternalError>([&] { make({twice}, {twice}); }),
              HasSubstr("two streams named compute"));
  EXPECT_THROW(LoneCpuExecutor({lone}, {.num_workers = 0}), InternalError);
}

// Twice as many elements in step buffers; "total" outlives both programs.
TEST(CpuExecutor, OtherProgramsFindThePersistentBuffersOfTheFirst) {
  const auto program = [](int rank, int64_t elems, std::string_view persistent = "total") {
    StepProgram builder(rank, 2);
    const StreamId compute = builder.stream("compute");
    const StreamId comm = builder.stream("dp", StreamKind::kComm);
    const GroupId group = builder.group("data", {0, 1});
    const BufferId total = builder.persistent(std::string(persistent), 8);
    const BufferId part = builder.step("part", 8);
    const BufferId sum = builder.step("sum", 8);
    const BufferId more = builder.step("more", elems);
    builder.fill(compute, part, rank + 1);
    builder.fill(compute, more, rank + 1);
    builder.all_reduce(comm, group, more);
    builder.all_reduce(comm, group, part);
    builder.add(compute, total, part, sum);
    builder.copy(compute, sum, total);
    return builder.finish();
  };
  CpuRanks ranks(2, [&](int rank) { return program(rank, 100); });
  ranks.run();
  const int64_t before = ranks[0].allocated_bytes();
  for (size_t rank = 0; rank < 2; ++rank) {
    ranks[rank].set_tracing(true);
    std::vector<Program> larger{program(static_cast<int>(rank), 100'000)};
    MemoryPlan plan = plan_of(larger);
    ranks[rank].replace_programs(std::move(larger), std::move(plan));
  }
  EXPECT_GT(ranks[0].allocated_bytes(), before + 4 * 99'000);
  ranks.run();
  ranks.run();
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(read_floats(ranks[rank], "total", 8), Each(9.0f));
    EXPECT_EQ(ranks[rank].timeline().step, 2);
  }
  std::vector<Program> other{program(0, 100, "another")};
  MemoryPlan plan = plan_of(other);
  EXPECT_THAT(message_of<InternalError>(
                  [&] { ranks[0].replace_programs(std::move(other), std::move(plan)); }),
              HasSubstr("the new programs of rank 0 have other persistent buffers"));
}

TEST(CpuExecutor, RefusesCallsOutOfOrder) {
  LoneCpuExecutor executor({infinite_program()}, {});
  EXPECT_THROW(executor.wait(), InternalError);
  EXPECT_THROW(executor.launch(1), InternalError);
  executor.launch(0);
  EXPECT_THROW(executor.launch(0), InternalError);
  std::vector<std::byte> bytes(4);
  EXPECT_THROW(executor.read("out", 0, bytes), InternalError);
  EXPECT_THROW(executor.set_tracing(true), InternalError);
  executor.wait();
  EXPECT_THROW(executor.wait(), InternalError);
}

TEST(CpuExecutor, RunsProgramsWithoutTasksOrStreams) {
  StepProgram no_tasks;
  no_tasks.stream("compute");
  LoneCpuExecutor executor({no_tasks.finish(), StepProgram().finish()}, {});
  EXPECT_NO_THROW(executor.run(0));
  EXPECT_NO_THROW(executor.run(1));
  EXPECT_EQ(executor.allocated_bytes(), 0);
}

}  // namespace
}  // namespace braid
