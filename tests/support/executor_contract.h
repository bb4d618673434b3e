#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/executor.h"
#include "base/errors.h"
#include "base/expect_error.h"
#include "ir/verify.h"
#include "memory/memory_plan.h"
#include "passes/insert_events.h"
#include "support/executor_helpers.h"
#include "support/random_program.h"
#include "support/step_program.h"

/// The contract of backends/executor.h as tests. A test program of an executor includes this header
/// and instantiates the suite:
///   INSTANTIATE_TEST_SUITE_P(Cpu, ExecutorContract, ::testing::Values(ExecutorKind{...}),
///   kind_name);
namespace braid {

struct ExecutorKind {
  std::string name;
  /// An executor of one rank for these programs, with a memory plan of its own making.
  std::function<std::unique_ptr<Executor>(std::vector<Program>, TaskHook)> make;
  /// Why this machine cannot run it; empty if it can.
  std::string skip_reason = {};
};

inline std::string kind_name(const ::testing::TestParamInfo<ExecutorKind>& info) {
  return info.param.name;
}

class ExecutorContract : public ::testing::TestWithParam<ExecutorKind> {
 protected:
  void SetUp() override {
    if (!GetParam().skip_reason.empty()) {
      GTEST_SKIP() << GetParam().skip_reason;
    }
  }
  std::unique_ptr<Executor> make(std::vector<Program> programs, TaskHook hook = {}) {
    return GetParam().make(std::move(programs), std::move(hook));
  }
  std::unique_ptr<Executor> make(Program program, TaskHook hook = {}) {
    std::vector<Program> programs;
    programs.push_back(std::move(program));
    return make(std::move(programs), std::move(hook));
  }
};

TEST_P(ExecutorContract, TasksOfAStreamRunInProgramOrder) {
  StepProgram program;
  const StreamId stream = program.stream("compute");
  const BufferId a = program.step("a", 5);
  const BufferId b = program.step("b", 5);
  const BufferId out = program.persistent("out", 5);
  program.fill(stream, a, 1);
  program.copy(stream, a, b);
  program.fill(stream, a, 2);
  program.add(stream, a, b, out);
  OpRecorder recorder;
  const auto executor = make(program.finish(), recorder.hook());
  executor->run(0);
  EXPECT_THAT(read_floats(*executor, "out", 5), ::testing::Each(3.0f));
  EXPECT_THAT(recorder.ops(), ::testing::ElementsAre("fill", "copy", "fill", "add"));
}

TEST_P(ExecutorContract, ATaskStartsAfterTheEventsItWaitsFor) {
  StepProgram program;
  const StreamId compute = program.stream("compute");
  const StreamId comm = program.stream("comm", StreamKind::kComm);
  const BufferId a = program.step("a", 3);
  const BufferId b = program.step("b", 3);
  const BufferId out = program.persistent("out", 3);
  program.fill(compute, a, 7);
  program.copy(comm, a, b);
  program.add(compute, a, b, out);
  OpRecorder recorder;
  const auto executor = make(program.finish(), [&](const OpSpec& spec) {
    if (spec.op != "add") {  // the waiting stream gets there long before
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    recorder.hook()(spec);
  });
  for (int step = 0; step < 5; ++step) {
    executor->run(0);
    EXPECT_THAT(read_floats(*executor, "out", 3), ::testing::Each(14.0f));
    executor->write("out", 0, std::vector<std::byte>(12));
  }
  const auto ops = recorder.ops();
  ASSERT_EQ(ops.size(), 15u);
  for (size_t i = 0; i < ops.size(); i += 3) {
    EXPECT_EQ(ops[i] + ops[i + 1] + ops[i + 2], "fillcopyadd");
  }
}

/// Two values of 1 and 2 that another stream adds; the fill of 13 comes third.
struct FailingProgram {
  StepProgram builder{1, 2};
  Program program;

  FailingProgram() {
    const StreamId compute = builder.stream("compute");
    const StreamId comm = builder.stream("comm", StreamKind::kComm);
    const BufferId a = builder.step("a", 4);
    const BufferId b = builder.step("b", 4);
    const BufferId out = builder.persistent("out", 4);
    Label label;
    label.microbatch = 0;
    label.layer = 3;
    label.site = builder.site("attention.qkv");
    builder.fill(compute, a, 1);
    builder.fill(compute, b, 2);
    builder.fill(compute, a, 13, label);
    builder.copy(compute, a, b);
    builder.add(comm, a, b, out);
    builder.copy(compute, out, b);
    program = builder.finish();
  }
};

TEST_P(ExecutorContract, AnErrorSurfacesAtTheNextWaitWithRankStreamTaskAndLabel) {
  const Program program = FailingProgram().program;
  const auto executor = make(program, [](const OpSpec& spec) {
    if (is_fill_of(spec, 13)) {
      throw std::runtime_error("the disk of the sun is dark");
    }
  });
  EXPECT_NO_THROW(executor->launch(0));
  EXPECT_THAT(
      message_of<DeviceError>([&] { executor->wait(); }),
      ::testing::HasSubstr("rank 1, stream compute, task 2 (" + describe_task(program, TaskId(2)) +
                           "): the disk of the sun is dark"));
  EXPECT_THROW(executor->run(0), Error);  // good for destruction only
}

TEST_P(ExecutorContract, NothingThatDependsOnAFailedTaskRuns) {
  OpRecorder recorder;
  const auto executor = make(FailingProgram().program, [&](const OpSpec& spec) {
    if (is_fill_of(spec, 13)) {
      throw std::runtime_error("no");
    }
    recorder.hook()(spec);
  });
  EXPECT_THROW(executor->run(0), DeviceError);
  EXPECT_THAT(recorder.ops(), ::testing::ElementsAre("fill", "fill"));
  EXPECT_THAT(read_floats(*executor, "out", 4), ::testing::Each(0.0f));
}

TEST_P(ExecutorContract, ProgramsShareTheirPersistentBuffersByName) {
  StepProgram train;
  train.persistent("first only in training", 100);
  const StreamId stream = train.stream("compute");
  const BufferId weight = train.persistent("weight", 9);
  const BufferId one = train.step("one", 9);
  const BufferId sum = train.step("sum", 9);
  train.fill(stream, one, 1);
  train.add(stream, weight, one, sum);
  train.copy(stream, sum, weight);
  StepProgram evaluate;
  const StreamId other = evaluate.stream("evaluate");
  const BufferId out = evaluate.persistent("out", 9);
  evaluate.copy(other, evaluate.persistent("weight", 9), out);
  std::vector<Program> programs;
  programs.push_back(train.finish());
  programs.push_back(evaluate.finish());
  const auto executor = make(std::move(programs));
  write_floats(*executor, "weight", std::vector<float>(9, 10.0f));
  for (const float expected : {12.0f, 14.0f, 16.0f}) {
    executor->run(0);
    executor->run(0);
    executor->run(1);
    EXPECT_THAT(read_floats(*executor, "out", 9), ::testing::Each(expected));
  }
}

TEST_P(ExecutorContract, ReadsAndWritesStayInsidePersistentBuffers) {
  StepProgram program;
  const BufferId out = program.persistent("out", 4);
  const BufferId step = program.step("step", 4);
  const StreamId stream = program.stream("compute");
  program.fill(stream, step, 1);
  program.copy(stream, step, out);
  const auto executor = make(program.finish());
  write_floats(*executor, "out", {1, 2, 3, 4});
  const float five = 5;
  executor->write("out", 8, std::as_bytes(std::span(&five, 1)));
  EXPECT_EQ(read_floats(*executor, "out", 4), (std::vector<float>{1, 2, 5, 4}));
  float last = 0;
  executor->read("out", 12, std::as_writable_bytes(std::span(&last, 1)));
  EXPECT_EQ(last, 4);
  EXPECT_NO_THROW(executor->read("out", 16, {}));

  std::vector<std::byte> bytes(8);
  EXPECT_THROW(executor->read("out", 12, bytes), InternalError);
  EXPECT_THROW(executor->write("out", 12, bytes), InternalError);
  EXPECT_THROW(executor->read("out", -1, bytes), InternalError);
  EXPECT_THROW(executor->read("out", INT64_MAX, bytes), InternalError);
  EXPECT_THROW(executor->write("step", 0, bytes), InternalError);
  EXPECT_THROW(executor->read("nothing", 0, bytes), InternalError);
}

TEST_P(ExecutorContract, AllocatesWhatIsPlanned) {
  const Program program = insert_events(random_program(5, {.num_streams = 2})).program;
  const Program* programs[] = {&program};
  EXPECT_EQ(make(program)->allocated_bytes(), plan_memory(programs).peak_bytes());
}

// ---- random programs ----

TEST_P(ExecutorContract, RandomProgramsMeanTheirTasksInOrderWhateverTheDelays) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RandomProgramOptions options{.num_tasks = 60,
                                       .num_buffers = 10,
                                       .num_streams = 1 + static_cast<int>(seed % 5),
                                       .max_elems = 40};
    const Program program = insert_events(random_program(seed, options)).program;
    verify_or_throw(program, "insert_events");
    const auto executor = make(program, random_delays(seed));
    Interpreter meaning(program);
    const BufferValues values = random_values(program, seed);
    meaning.set(values);
    for (const auto& [name, of_buffer] : values) {
      write_floats(*executor, name, of_buffer);
    }
    for (int step = 0; step < 3; ++step) {
      executor->run(0);
      meaning.run();
      expect_equal_bytes(*executor, program, meaning);
    }
  }
}

TEST_P(ExecutorContract, ReplayingAStepGivesTheSameBytes) {
  const Program program = insert_events(random_program(77, {.num_streams = 4})).program;
  const auto executor = make(program);
  const BufferValues values = random_values(program, 1);
  Interpreter meaning(program);
  meaning.set(values);
  meaning.run();
  for (int step = 0; step < 100; ++step) {
    for (const auto& [name, of_buffer] : values) {
      write_floats(*executor, name, of_buffer);
    }
    executor->run(0);
    expect_equal_bytes(*executor, program, meaning);
  }
}

// ---- tracing ----

TEST_P(ExecutorContract, TheTimelineHasEveryTaskInAnOrderThatRespectsStreamsAndEvents) {
  const Program program =
      insert_events(random_program(9, {.num_tasks = 50, .num_streams = 3})).program;
  const auto executor = make(program);
  executor->set_tracing(true);
  executor->run(0);
  const RankTimeline timeline = executor->timeline();
  ASSERT_EQ(timeline.tasks.size(), program.tasks.size());
  EXPECT_EQ(timeline.streams, program.streams);

  // The tasks of a stream come in program order, so both lists can be walked together.
  std::vector<std::vector<const TimelineTask*>> of_stream(program.streams.size());
  for (const TimelineTask& task : timeline.tasks) {
    of_stream.at(task.stream).push_back(&task);
  }
  std::vector<size_t> next(program.streams.size());
  std::vector<int64_t> end_of_stream(program.streams.size());
  std::vector<int64_t> recorded_ns(program.num_events);
  for (const Task& task : program.tasks) {
    const size_t stream = task.stream.index();
    const TimelineTask& ran = *of_stream[stream].at(next[stream]++);
    EXPECT_EQ(timeline.names.at(ran.name).find(program.spec(task).op), 0u);
    EXPECT_EQ(ran.phase, task.label.phase);
    EXPECT_EQ(ran.microbatch, task.label.microbatch);
    EXPECT_EQ(ran.layer, task.label.layer);
    EXPECT_EQ(ran.communication, program.spec(task).op == "all_reduce");
    EXPECT_LE(0, ran.start_ns);
    EXPECT_LE(ran.start_ns, ran.end_ns);
    EXPECT_LE(end_of_stream[stream], ran.start_ns);
    end_of_stream[stream] = ran.end_ns;
    for (const EventId event : program.waits_of(task)) {
      EXPECT_LE(recorded_ns[event.index()], ran.start_ns);
    }
    if (task.record.valid()) {
      recorded_ns[task.record.index()] = ran.end_ns;
    }
  }
}

TEST_P(ExecutorContract, TracingCanBeSwitchedAndKeepsTheLastTracedStep) {
  StepProgram builder;
  const StreamId stream = builder.stream("compute");
  builder.fill(stream, builder.persistent("out", 1), 1);
  const auto executor = make(builder.finish());
  EXPECT_THROW(executor->timeline(), InternalError);
  executor->run(0);
  EXPECT_THROW(executor->timeline(), InternalError);
  executor->set_tracing(true);
  executor->run(0);
  executor->set_tracing(false);
  const RankTimeline traced = executor->timeline();
  executor->run(0);
  EXPECT_EQ(executor->timeline().tasks, traced.tasks);
}

TEST_P(ExecutorContract, IsDestroyedWithoutHangingWhileAStepRuns) {
  for (int round = 0; round < 10; ++round) {
    const Program program =
        insert_events(random_program(4, {.num_tasks = 100, .num_streams = 4})).program;
    const auto executor = make(program, random_delays(static_cast<uint32_t>(round)));
    executor->launch(0);
  }
}

}  // namespace braid
