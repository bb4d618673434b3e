#include "backends/cuda/mark_words.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/memory_ops.h"
#include "support/cuda_kernel_case.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

/// A word that a stream waits for until the host lets it go on.
class Gate {
 public:
  void enqueue(cudaStream_t stream) const {
    MemoryOps ops;
    ops.await(word_.data(), 1);
    ops.set(word_.data(), 0);  // for the next time
    ops.enqueue(stream);
  }
  void open() const {
    std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(word_.data())).store(1);
  }

 private:
  PinnedArena word_{4, "a gate"};
};

class MarkWordsOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_gpu().empty()) {
      GTEST_SKIP() << why_no_gpu();
    }
    launch_stream_ = CudaStream(0);
    comm_ = CudaStream(1);
    forked_ = CudaEvent(EventTiming::kNone);
    joined_ = CudaEvent(EventTiming::kNone);
    marks_.emplace(3, launch_stream_);
    gate_.emplace();
  }

  /// Task 7 on stream 1, which waits at the gate.
  void enqueue_step() {
    BRAID_CUDA_CHECK(cudaEventRecord(forked_, launch_stream_));
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(comm_, forked_));
    marks_->begin_task(1, TaskId(7), comm_);
    gate_->enqueue(comm_);
    marks_->end_task(1, TaskId(7), comm_);
    BRAID_CUDA_CHECK(cudaEventRecord(joined_, comm_));
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(launch_stream_, joined_));
  }

  /// Whether such marks come, which the device sets in its own time.
  bool become(const StepMarks& expected) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (marks_->read() != expected) {
      if (std::chrono::steady_clock::now() > until) {
        return false;
      }
      std::this_thread::yield();
    }
    return true;
  }

  void expect_marks_of_steps(const std::function<void()>& run) {
    for (const int64_t step : {0, 1, 5}) {
      marks_->begin_step(step, 2, launch_stream_);
      run();
      EXPECT_TRUE(become({.step = step, .program = 2, .marks = {0, begin_mark(TaskId(7)), 0}}));
      gate_->open();
      EXPECT_TRUE(become({.step = step, .program = 2, .marks = {0, end_mark(TaskId(7)), 0}}));
    }
    BRAID_CUDA_CHECK(cudaStreamSynchronize(launch_stream_));
  }

  CudaStream launch_stream_;
  CudaStream comm_;
  CudaEvent forked_;
  CudaEvent joined_;
  std::optional<MarkWords> marks_;
  std::optional<Gate> gate_;
};

TEST_F(MarkWordsOnGpu, SayNothingBeforeTheFirstStep) {
  const StepMarks marks = marks_->read();
  EXPECT_EQ(marks.step, -1);
  EXPECT_THAT(marks.marks, ElementsAre(kNoMark, kNoMark, kNoMark));
}

TEST_F(MarkWordsOnGpu, FollowTheTasksOfAStream) {
  expect_marks_of_steps([this] { enqueue_step(); });
}

// Every replay has the same marks, and begins with none.
TEST_F(MarkWordsOnGpu, FollowTheReplaysOfAGraph) {
  CudaCapture capture(launch_stream_);
  enqueue_step();
  const CudaGraphExec graph(capture.end(), launch_stream_);
  EXPECT_THAT(marks_->read().marks, Each(kNoMark));
  expect_marks_of_steps([&] { BRAID_CUDA_CHECK(cudaGraphLaunch(graph, launch_stream_)); });
}

// A second step is launched while the first one waits.
TEST_F(MarkWordsOnGpu, AreThoseOfTheStepThatRuns) {
  for (const int64_t step : {3, 4}) {
    marks_->begin_step(step, 0, launch_stream_);
    enqueue_step();
  }
  EXPECT_TRUE(become({.step = 3, .program = 0, .marks = {0, begin_mark(TaskId(7)), 0}}));
  gate_->open();
  EXPECT_TRUE(become({.step = 4, .program = 0, .marks = {0, begin_mark(TaskId(7)), 0}}));
  gate_->open();
  BRAID_CUDA_CHECK(cudaStreamSynchronize(launch_stream_));
}

}  // namespace
}  // namespace braid
