#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/element_hash.h"
#include "base/errors.h"
#include "memory/memory_plan.h"
#include "passes/streams/insert_events.h"
#include "support/executor_contract/fixture.h"
#include "support/executor_helpers.h"
#include "support/random_program.h"
#include "support/step_program.h"

/// What is allocated, on the device and on the host, and how the host reads and writes it.
namespace braid {

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

TEST_P(ExecutorContract, HashesElementsHoweverTheyAreDivided) {
  constexpr int64_t kElems = 300'001;  // more than a block of host memory
  StepProgram program;
  const StreamId stream = program.stream("compute");
  for (const char* name : {"a", "b"}) {
    program.fill(stream, program.persistent(name, kElems), 7);
  }
  const auto executor = make(program.finish());
  std::vector<float> values(kElems);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 1000) - 0.5f;
  }
  write_floats(*executor, "a", values);
  write_floats(*executor, "b", values);
  const auto part = [](std::string_view buffer, int64_t begin, int64_t end) {
    return BufferElems{.buffer = buffer, .begin = begin, .num_elems = end - begin};
  };
  const uint64_t whole = element_hash(std::as_bytes(std::span(values)), DType::kF32, 0);
  EXPECT_EQ(executor->hash(std::vector{part("a", 0, kElems)}), whole);
  EXPECT_EQ(executor->hash(std::vector{part("a", 0, 5), part("b", 5, 5), part("b", 5, 70'000),
                                       part("a", 70'000, kElems)}),
            whole);
  EXPECT_EQ(executor->hash({}), 0u);
  values.back() = 3;
  write_floats(*executor, "b", values);
  EXPECT_NE(executor->hash(std::vector{part("b", 0, kElems)}), whole);
  EXPECT_THROW(executor->hash(std::vector{part("a", 1, kElems + 1)}), InternalError);
  EXPECT_THROW(executor->hash(std::vector{part("nothing", 0, 1)}), InternalError);
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

TEST_P(ExecutorContract, AllocatesWhatIsPlanned) {
  const Program program = insert_events(random_program(5, {.num_streams = 2})).program;
  const Program* programs[] = {&program};
  const auto executor = make(program);
  EXPECT_EQ(executor->allocated_bytes(), plan_memory(programs).peak_bytes());
  EXPECT_EQ(executor->allocated_host_bytes(), 0);
}

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

}  // namespace braid
