#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "base/errors.h"
#include "passes/streams/insert_events.h"
#include "support/executor_contract/fixture.h"
#include "support/executor_helpers.h"
#include "support/random_program.h"
#include "support/step_program.h"

/// Timelines of steps.
namespace braid {

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

}  // namespace braid
