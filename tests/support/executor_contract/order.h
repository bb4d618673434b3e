#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "ir/verify.h"
#include "memory/memory_plan.h"
#include "passes/streams/insert_events.h"
#include "support/executor_contract/fixture.h"
#include "support/executor_helpers.h"
#include "support/random_program.h"
#include "support/step_program.h"

/// Tasks run in the order of the program, whatever streams and delays do.
namespace braid {

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

}  // namespace braid
