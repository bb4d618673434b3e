#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "support/executor_contract/fixture.h"
#include "support/executor_helpers.h"
#include "support/step_program.h"

/// Errors of tasks, and numbers that are none, are named by whoever waits.
namespace braid {

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

}  // namespace braid
