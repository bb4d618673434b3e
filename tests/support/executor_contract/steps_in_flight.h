#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "passes/streams/insert_events.h"
#include "support/executor_contract/fixture.h"
#include "support/executor_helpers.h"
#include "support/random_program.h"
#include "support/step_program.h"

/// Steps that run while the host continues: launched before the previous step has ended, or never
/// waited for.
namespace braid {

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

TEST_P(ExecutorContract, IsDestroyedWithoutHangingWhileAStepRuns) {
  for (int round = 0; round < 10; ++round) {
    const Program program =
        insert_events(random_program(4, {.num_tasks = 100, .num_streams = 4})).program;
    const auto executor = make(program, random_delays(static_cast<uint32_t>(round)));
    executor->launch(0);
  }
}

}  // namespace braid
