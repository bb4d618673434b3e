#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
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

TEST_P(ExecutorContract, ZeroesPersistentBuffersAndNothingElse) {
  StepProgram program;
  const StreamId stream = program.stream("compute");
  for (const char* name : {"before", "middle", "after"}) {
    program.fill(stream, program.persistent(name, 1037), 7);
  }
  program.fill(stream, program.step("step", 4), 1);
  const auto executor = make(program.finish());
  executor->run(0);
  executor->zero("middle");
  EXPECT_THAT(read_floats(*executor, "before", 1037), ::testing::Each(7.0f));
  EXPECT_THAT(read_floats(*executor, "middle", 1037), ::testing::Each(0.0f));
  EXPECT_THAT(read_floats(*executor, "after", 1037), ::testing::Each(7.0f));
  EXPECT_THROW(executor->zero("step"), InternalError);
  EXPECT_THROW(executor->zero("nothing"), InternalError);
}

TEST_P(ExecutorContract, HostBlocksAreZeroedMemoryToCopyFromAndTo) {
  StepProgram program;
  program.fill(program.stream("compute"), program.persistent("out", 5000), 7);
  const auto executor = make(program.finish());
  const HostBlock from = executor->host_block(20000);
  const HostBlock to = executor->host_block(20000);
  ASSERT_EQ(from.bytes.size(), 20000u);
  EXPECT_THAT(from.bytes, ::testing::Each(std::byte{0}));
  std::fill(from.bytes.begin(), from.bytes.end(), std::byte{0x41});
  executor->write("out", 0, from.bytes);
  executor->read("out", 0, to.bytes);
  EXPECT_THAT(to.bytes, ::testing::Each(std::byte{0x41}));
  EXPECT_EQ(executor->host_block(0).bytes.size(), 0u);
}

/// Sums `x`, which the host writes, in four rounds, of which the second and the third overflow if x
/// is large enough.
inline Program growing_program() {
  StepProgram builder(1, 2);
  const StreamId stream = builder.stream("compute");
  const BufferId x = builder.persistent("x", 70);
  const BufferId once = builder.step("once", 70);
  const BufferId twice = builder.step("twice", 70);
  Label label;
  label.microbatch = 2;
  label.layer = 5;
  label.site = builder.site("mlp.fc2");
  builder.add(stream, x, x, once);
  builder.add(stream, once, once, twice, label);
  builder.add(stream, twice, twice, builder.persistent("out", 70));
  return builder.finish();
}

TEST_P(ExecutorContract, FiniteChecksNameTaskBufferAndFirstElement) {
  const Program program = growing_program();
  std::vector<float> values(70, 1.0f);
  values[64] = values[67] = 1e38f;
  // Asked for at once, after a step without, and after a step with.
  for (const int rounds : {0, 1, 2}) {
    const auto executor = make(program);
    for (int round = 0; round < rounds; ++round) {
      write_floats(*executor, "x", std::vector<float>(70, 2.0f));
      executor->set_finite_checks(round == 1);
      executor->run(0);
      EXPECT_THAT(read_floats(*executor, "out", 70), ::testing::Each(16.0f));
    }
    write_floats(*executor, "x", values);
    executor->set_finite_checks(true);
    EXPECT_EQ(message_of<DeviceError>([&] { executor->run(0); }),
              "rank 1, stream compute, task 1 (" + describe_task(program, TaskId(1)) +
                  "): wrote NaN or infinity to element 64 of buffer twice");
    EXPECT_THAT(describe_task(program, TaskId(1)), ::testing::HasSubstr("mb=2"));
  }
}

TEST_P(ExecutorContract, WithoutFiniteChecksNaNsPass) {
  const auto executor = make(growing_program());
  write_floats(*executor, "x", std::vector<float>(70, std::nanf("")));
  executor->run(0);
  executor->set_finite_checks(true);
  executor->set_finite_checks(false);
  executor->run(0);
  EXPECT_THAT(read_floats(*executor, "out", 70), ::testing::Each(::testing::IsNan()));
}

TEST_P(ExecutorContract, AllocatesWhatIsPlanned) {
  const Program program = insert_events(random_program(5, {.num_streams = 2})).program;
  const Program* programs[] = {&program};
  const auto executor = make(program);
  EXPECT_EQ(executor->allocated_bytes(), plan_memory(programs).peak_bytes());
  EXPECT_EQ(executor->allocated_host_bytes(), 0);
}

// ---- tasks that do nothing ----

// The bytes of `away` go to `other` once the stream that still reads them is known to be done.
TEST_P(ExecutorContract, TasksThatDoNothingKeepTheirPlaceInTheOrder) {
  constexpr int64_t kElems = 64;
  StepProgram builder;
  const StreamId compute = builder.stream("compute");
  const StreamId out = builder.stream("copy.out", StreamKind::kCopy);
  const BufferId target = builder.persistent("target", kElems);
  const BufferId away = builder.step("away", kElems);
  const BufferId other = builder.step("other", kElems);
  builder.fill(compute, away, 7);
  builder.copy(out, away, target);
  builder.undefine(compute, away);
  builder.fill(compute, other, 9);
  builder.undefine(compute, builder.persistent("no number", 1));
  const Program program = builder.finish();
  const Program* programs[] = {&program};
  EXPECT_EQ(plan_memory(programs).step_bytes, 256);
  OpRecorder recorder;
  const auto executor = make(program, [&](const OpSpec& spec) {
    if (spec.op == "copy") {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    recorder.hook()(spec);
  });
  write_floats(*executor, "no number", {std::nanf("")});
  for (int step = 0; step < 3; ++step) {
    executor->set_finite_checks(step == 2);  // of what is written: nothing is
    executor->run(0);
    EXPECT_THAT(read_floats(*executor, "target", kElems), ::testing::Each(7.0f));
  }
  EXPECT_THAT(recorder.ops(), ::testing::Not(::testing::Contains("undefine")));
}

// ---- communication of one rank ----

TEST_P(ExecutorContract, CollectivesOfOneRankCopy) {
  constexpr int64_t kElems = 1001;
  ProgramBuilder builder("step", 1, 2);
  const StreamId compute = builder.add_stream({"compute", StreamKind::kCompute, 0});
  builder.add_group({"both", GroupKind::kData, {0, 1}});
  builder.add_group({"alone", GroupKind::kTensor, {1}});
  const auto buffer = [&](const std::string& name) {
    return builder.whole(builder.add_buffer(
        {name, DType::kF32, {kElems}, BufferRole::kActivation, Lifetime::kPersistent}));
  };
  const BufferRange x = buffer("x");
  const auto add = [&](const std::string& op, const Attribute& more = {}) {
    OpSpec spec{op,
                {{"group", int64_t{1}}},
                {{DType::kF32, Access::kRead, {kElems}}, {DType::kF32, Access::kWrite, {kElems}}}};
    if (!more.name.empty()) {
      spec.attributes.push_back(more);
    }
    builder.add_task(spec, std::array{x, buffer(op)}, compute, {.phase = Phase::kComm});
  };
  for (const char* const op : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}) {
    add(op);
  }
  add("broadcast", {"root", int64_t{0}});
  add("reduce", {"root", int64_t{0}});
  add("ring_shift", {"shift", int64_t{-3}});
  const auto executor = make(insert_events(builder.take()).program);
  std::vector<float> values(kElems);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) + 0.25f;
  }
  write_floats(*executor, "x", values);
  executor->run(0);
  for (const char* const op : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                               "broadcast", "reduce", "ring_shift"}) {
    EXPECT_EQ(read_floats(*executor, op, kElems), values) << op;
  }
  EXPECT_EQ(read_floats(*executor, "x", kElems), values);
}

// It only marks where gradients are summed over a group, however large that is.
TEST_P(ExecutorContract, IdentityCopiesWhateverItsGroup) {
  ProgramBuilder builder("step", 1, 2);
  const StreamId compute = builder.add_stream({"compute", StreamKind::kCompute, 0});
  builder.add_group({"both", GroupKind::kTensor, {0, 1}});
  std::vector<BufferRange> ranges;
  for (const char* const name : {"x", "y"}) {
    ranges.push_back(builder.whole(builder.add_buffer(
        {name, DType::kF32, {3, 7}, BufferRole::kActivation, Lifetime::kPersistent})));
  }
  const OpSpec spec{"identity",
                    {{"group", int64_t{0}}},
                    {{DType::kF32, Access::kRead, {3, 7}}, {DType::kF32, Access::kWrite, {3, 7}}}};
  builder.add_task(spec, ranges, compute, {});
  const auto executor = make(insert_events(builder.take()).program);
  write_floats(*executor, "x", std::vector<float>(21, 2.5f));
  executor->run(0);
  EXPECT_THAT(read_floats(*executor, "y", 21), ::testing::Each(2.5f));
}

// ---- buffers on the host ----

TEST_P(ExecutorContract, BuffersOnTheHostKeepWhatIsCopiedThere) {
  constexpr int64_t kElems = 1001;
  StepProgram builder;
  const StreamId compute = builder.stream("compute");
  const StreamId out = builder.stream("copy.out", StreamKind::kCopy);
  const StreamId in = builder.stream("copy.in", StreamKind::kCopy);
  const BufferId source = builder.persistent("source", kElems);
  const BufferId target = builder.persistent("target", kElems);
  const BufferId doubled = builder.step("doubled", kElems);
  const BufferId first = builder.on_host("first", kElems);
  const BufferId second = builder.on_host("second", kElems);
  const BufferId back = builder.step("back", kElems);
  const BufferId again = builder.step("again", kElems);
  builder.add(compute, source, source, doubled);
  builder.copy(out, doubled, first);
  builder.copy(out, source, second);
  builder.fill(compute, doubled, -1);  // waits for the copy
  builder.copy(in, first, back);
  builder.copy(in, second, again);
  builder.add(compute, back, again, target);
  const Program program = builder.finish();
  const Program* programs[] = {&program};
  const MemoryPlan plan = plan_memory(programs);
  EXPECT_EQ(plan.host_bytes, 2 * 4096);
  const auto executor = make(program);
  EXPECT_EQ(executor->allocated_bytes(), plan.peak_bytes());
  EXPECT_EQ(executor->allocated_host_bytes(), plan.host_bytes);
  for (int step = 0; step < 3; ++step) {
    std::vector<float> values(kElems);
    std::vector<float> expected(kElems);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i) + static_cast<float>(step);
      expected[i] = 3 * values[i];
    }
    write_floats(*executor, "source", values);
    executor->run(0);
    EXPECT_EQ(read_floats(*executor, "target", kElems), expected);
  }
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

// ---- steps in flight ----

/// total += x, and total += total.
struct SumPrograms {
  static constexpr int64_t kElems = 3001;

  static std::vector<Program> make() {
    std::vector<Program> programs;
    for (const bool doubles : {false, true}) {
      StepProgram builder;
      const StreamId compute = builder.stream("compute");
      const StreamId copies = builder.stream("copies", StreamKind::kCopy);
      const BufferId x = builder.persistent("x", kElems);
      const BufferId total = builder.persistent("total", kElems);
      const BufferId sum = builder.step("sum", kElems);
      builder.add(compute, total, doubles ? total : x, sum);
      builder.copy(copies, sum, total);
      programs.push_back(builder.finish());
    }
    return programs;
  }
};

/// Host memory of one step in flight of `SumPrograms`.
struct SumSlot {
  HostBlock x;
  HostBlock total;
  float expected = 0;

  explicit SumSlot(Executor& executor)
      : x(executor.host_block(SumPrograms::kElems * 4)),
        total(executor.host_block(SumPrograms::kElems * 4)) {}

  static std::span<float> floats(const HostBlock& block) {
    return {reinterpret_cast<float*>(block.bytes.data()), block.bytes.size() / sizeof(float)};
  }
};

// All numbers are integers that f32 has. The host and the device are late at random: inputs that
// are taken late or overwritten early, and results of another step, are other numbers.
TEST_P(ExecutorContract, StepsInFlightAreThoseOfOneAfterTheOther) {
  std::mt19937 random(7);
  const auto executor = make(SumPrograms::make(), random_delays(3));
  const auto depth = static_cast<size_t>(executor->max_steps_in_flight());
  ASSERT_GE(depth, 1u);
  std::vector<SumSlot> slots;
  for (size_t i = 0; i < depth; ++i) {
    slots.emplace_back(*executor);
  }
  const auto finish = [&](size_t step) {
    executor->wait();
    const SumSlot& slot = slots[step % depth];
    EXPECT_THAT(SumSlot::floats(slot.total), ::testing::Each(slot.expected)) << "step " << step;
    std::ranges::fill(slot.total.bytes, std::byte{0xFF});
  };
  constexpr size_t kSteps = 60;
  float total = 0;
  size_t waited = 0;
  for (size_t step = 0; step < kSteps; ++step) {
    if (step - waited == depth) {
      finish(waited++);
    }
    SumSlot& slot = slots[step % depth];
    const bool doubles = random() % 8 == 0;
    const auto x = static_cast<float>(random() % 16);
    total += doubles ? total : x;
    slot.expected = total;
    std::ranges::fill(SumSlot::floats(slot.x), x);
    executor->enqueue_write("x", 0, slot.x.bytes);
    executor->launch(doubles ? 1 : 0);
    executor->enqueue_read("total", 0, slot.total.bytes);
    if (random() % 3 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    }
    while (waited <= step && random() % 16 == 0) {
      finish(waited++);
    }
  }
  while (waited < kSteps) {
    finish(waited++);
  }
  EXPECT_THAT(read_floats(*executor, "total", SumPrograms::kElems), ::testing::Each(total));
}

TEST_P(ExecutorContract, EnqueuedTransfersStayInsidePersistentBuffers) {
  const auto executor = make(SumPrograms::make());
  const HostBlock block = executor->host_block(8);
  for (int step = 0; step < 2; ++step) {
    std::fill_n(SumSlot::floats(block).begin(), 2, static_cast<float>(5 + step));
    executor->enqueue_write("x", 12, block.bytes);
    executor->launch(0);
    executor->enqueue_read("total", 16, block.bytes.first(4));
    executor->enqueue_read("total", 20, block.bytes.last(4));
    executor->wait();
    EXPECT_EQ(SumSlot::floats(block)[0], step == 0 ? 5 : 11);
    EXPECT_EQ(SumSlot::floats(block)[1], 0);
  }
  const std::vector<float> total = read_floats(*executor, "total", 7);
  EXPECT_EQ(total, (std::vector<float>{0, 0, 0, 11, 11, 0, 0}));
}

TEST_P(ExecutorContract, NothingElseIsDoneWithStepsInFlight) {
  const auto executor = make(SumPrograms::make());
  const HostBlock block = executor->host_block(4);
  EXPECT_THROW(executor->wait(), InternalError);
  EXPECT_THROW(executor->enqueue_read("total", 0, block.bytes), InternalError);
  const int depth = executor->max_steps_in_flight();
  for (int step = 0; step < depth; ++step) {
    executor->launch(0);
  }
  EXPECT_THROW(executor->launch(0), InternalError);
  for (int step = 0; step < depth; ++step) {
    EXPECT_THROW(executor->write("x", 0, block.bytes), InternalError);
    EXPECT_THROW(executor->read("x", 0, block.bytes), InternalError);
    EXPECT_THROW(executor->zero("x"), InternalError);
    EXPECT_THROW(executor->set_tracing(true), InternalError);
    EXPECT_THROW(executor->set_finite_checks(true), InternalError);
    executor->wait();
  }
  EXPECT_THROW(executor->wait(), InternalError);
  executor->write("x", 0, block.bytes);
}

TEST_P(ExecutorContract, ATracedStepIsAlone) {
  const auto executor = make(SumPrograms::make());
  executor->run(0);
  executor->set_tracing(true);
  executor->launch(0);
  EXPECT_THROW(executor->launch(0), InternalError);
  executor->wait();
  executor->set_tracing(false);
  EXPECT_EQ(executor->timeline().tasks.size(), 2u);
  for (int step = 0; step < executor->max_steps_in_flight(); ++step) {
    executor->launch(0);
  }
  for (int step = 0; step < executor->max_steps_in_flight(); ++step) {
    executor->wait();
  }
}

TEST_P(ExecutorContract, AnErrorIsTheEndOfAllStepsInFlight) {
  StepProgram bad;
  bad.fill(bad.stream("compute"), bad.persistent("y", 4), 13);
  std::vector<Program> programs = SumPrograms::make();
  programs.back() = bad.finish();
  const auto executor = make(std::move(programs), [](const OpSpec& spec) {
    if (is_fill_of(spec, 13)) {
      throw std::runtime_error("the disk of the sun is dark");
    }
  });
  executor->run(0);
  for (int step = 1; step < executor->max_steps_in_flight(); ++step) {
    executor->launch(0);
  }
  EXPECT_NO_THROW(executor->launch(1));
  EXPECT_THAT(message_of<DeviceError>([&] {
                for (int step = 0; step < executor->max_steps_in_flight(); ++step) {
                  executor->wait();
                }
              }),
              ::testing::HasSubstr("stream compute, task 0"));
  EXPECT_THROW(executor->wait(), InternalError);
  EXPECT_THROW(executor->launch(0), InternalError);
}

}  // namespace braid
