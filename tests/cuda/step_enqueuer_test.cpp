#include "backends/cuda/step_enqueuer.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/memory_ops.h"
#include "backends/cuda/pinned_arena.h"
#include "base/expect_error.h"
#include "ops/meets_others.h"
#include "support/cuda_kernel_case.h"
#include "support/step_program.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kElems = 64;
constexpr size_t kSlotBytes = 512;  // of each buffer

/// fill a, fill b, add, all_reduce, fill c: kernels fill their first operand and are counted.
class StepEnqueuerTest : public ::testing::Test {
 protected:
  enum Kernel : size_t { kFill, kAdd, kAllReduce, kNumKernels };

  void SetUp() override {
    if (!why_no_gpu().empty()) {
      GTEST_SKIP() << why_no_gpu();
    }
    StepProgram builder(0, 2);
    const StreamId compute = builder.stream("compute");
    const GroupId both = builder.group("both", {0, 1});
    const BufferId a = builder.persistent("a", kElems);
    const BufferId b = builder.persistent("b", kElems);
    const BufferId c = builder.persistent("c", kElems);
    builder.fill(compute, a, 1);
    builder.fill(compute, b, 1);
    builder.add(compute, a, b, c);
    builder.all_reduce(compute, both, c);
    builder.fill(compute, c, 1);
    program_ = builder.finish();
    streams_.emplace();
    memory_ = DeviceArena(3 * kSlotBytes, "buffers");
    for (size_t i = 0; i < kNumKernels; ++i) {
      kernels_[i].launch = [this, i](const CudaKernelArgs& args) { fill(i, args); };
    }
    bound_ = {.program = &program_,
              .streams = streams_->add(program_),
              .kernels = {&kernels_[kFill], &kernels_[kFill], &kernels_[kAdd],
                          &kernels_[kAllReduce], &kernels_[kFill]},
              .operands = {}};
    for (const BufferId buffer : {a, b, a, b, c, c, c}) {
      bound_.operands.push_back(memory_.data() + buffer.index() * kSlotBytes);
    }
  }

  void fill(size_t kernel, const CudaKernelArgs& args) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    BRAID_CUDA_CHECK(cudaStreamIsCapturing(args.stream, &status));
    ++(status == cudaStreamCaptureStatusActive ? captured_ : launched_)[kernel];
    BRAID_CUDA_CHECK(cudaMemsetAsync(args.operands[0], 7, kElems * sizeof(float), args.stream));
  }

  std::vector<std::byte> bytes() {
    std::vector<std::byte> values(3 * kSlotBytes);
    BRAID_CUDA_CHECK(cudaDeviceSynchronize());
    BRAID_CUDA_CHECK(
        cudaMemcpy(values.data(), memory_.data(), values.size(), cudaMemcpyDeviceToHost));
    return values;
  }

  Program program_;
  std::optional<DeviceStreams> streams_;
  DeviceArena memory_;
  std::array<CudaKernel, kNumKernels> kernels_;
  std::array<int, kNumKernels> captured_{};
  std::array<int, kNumKernels> launched_{};
  BoundProgram bound_;
};

TEST_F(StepEnqueuerTest, LoadsEachComputeKernelOnceAndRunsNone) {
  StepEnqueuer enqueuer(0, *streams_);
  enqueuer.load_kernels(bound_);
  EXPECT_THAT(captured_, ElementsAre(1, 1, 0));
  EXPECT_THAT(launched_, ElementsAre(0, 0, 0));
  EXPECT_THAT(bytes(), ::testing::Each(std::byte{0}));
}

TEST_F(StepEnqueuerTest, LoadsAKernelAgainForOperandsOfAnotherAlignment) {
  bound_.operands[1] += 16;  // of the second fill
  StepEnqueuer enqueuer(0, *streams_);
  enqueuer.load_kernels(bound_);
  EXPECT_THAT(captured_, ElementsAre(2, 1, 0));
}

TEST_F(StepEnqueuerTest, WhatCannotBeLoadedIsAnErrorOfTheTaskWhenItRuns) {
  kernels_[kAdd].launch = [](const CudaKernelArgs&) { throw_device_error("broken on purpose"); };
  StepEnqueuer enqueuer(0, *streams_);
  enqueuer.load_kernels(bound_);
  EXPECT_THAT(message_of<TaskError>([&] { enqueuer.enqueue(bound_, {}); }),
              ::testing::AllOf(HasSubstr("rank 0, stream compute, task 2 (add"),
                               HasSubstr("broken on purpose")));
  EXPECT_THAT(launched_, ElementsAre(2, 0, 0));  // what is before it
}

TEST_F(StepEnqueuerTest, AGraphHasEveryTaskAndRunsNoneByItself) {
  StepEnqueuer enqueuer(0, *streams_);
  const CudaGraphExec graph = enqueuer.capture(bound_);
  EXPECT_THAT(captured_, ElementsAre(3, 1, 1));
  EXPECT_THAT(bytes(), ::testing::Each(std::byte{0}));
  BRAID_CUDA_CHECK(cudaGraphLaunch(graph, streams_->launch_stream()));
  const std::vector<std::byte> values = bytes();
  for (size_t buffer = 0; buffer < 3; ++buffer) {
    EXPECT_EQ(values[buffer * kSlotBytes], std::byte{7}) << buffer;
  }
}

// The kernel of task 3 waits for the host, as one of communication waits for another rank.
TEST_F(StepEnqueuerTest, ATaskThatMeetsOthersIsMarkedAsBegunUntilItHasEnded) {
  const PinnedArena gate(4, "a gate");
  kernels_[kAllReduce].launch = [&](const CudaKernelArgs& args) {
    MemoryOps ops;
    ops.await(gate.data(), 1);
    ops.set(gate.data(), 0);
    ops.enqueue(args.stream);
  };
  const MarkWords marks(streams_->size(), streams_->launch_stream());
  bound_.marks = &marks;
  bound_.is_marked = tasks_that_meet_others(program_);
  StepEnqueuer enqueuer(0, *streams_);
  const CudaGraphExec graph = enqueuer.capture(bound_);
  for (const int64_t step : {0, 1, 2}) {
    marks.begin_step(step, 0, streams_->launch_stream());
    if (step == 0) {
      enqueuer.enqueue(bound_, {});
    } else {
      BRAID_CUDA_CHECK(cudaGraphLaunch(graph, streams_->launch_stream()));
    }
    const StepMarks waiting{.step = step, .program = 0, .marks = {begin_mark(TaskId(3))}};
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (marks.read() != waiting && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    EXPECT_EQ(marks.read(), waiting);
    std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(gate.data())).store(1);
    BRAID_CUDA_CHECK(cudaDeviceSynchronize());
    EXPECT_EQ(marks.read(),
              (StepMarks{.step = step, .program = 0, .marks = {end_mark(TaskId(3))}}));
  }
}

}  // namespace
}  // namespace braid
