#include "backends/cuda/cuda_executor.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <thread>

#include "base/expect_error.h"
#include "support/cuda_executors.h"
#include "support/cuda_kernel_case.h"
#include "support/random_program.h"
#include "support/step_program.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kFoundBytes = 256;  // what finite checks work in

class CudaExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_gpu().empty()) {
      GTEST_SKIP() << why_no_gpu();
    }
  }
};

size_t free_device_bytes() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  BRAID_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return free_bytes;
}

/// All persistent bytes after some steps from the same start.
BufferValues values_after_steps(const Program& program, const CudaExecutorOptions& options) {
  const auto executor = make_cuda_executor(program, options);
  BufferValues values = random_values(program, 3);
  for (const auto& [name, of_buffer] : values) {
    write_floats(*executor, name, of_buffer);
  }
  for (int step = 0; step < 4; ++step) {
    executor->run(0);
  }
  for (auto& [name, of_buffer] : values) {
    of_buffer = read_floats(*executor, name, of_buffer.size());
  }
  return values;
}

TEST_F(CudaExecutorTest, GraphEagerAndOneByOneGiveTheSameBytes) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RandomProgramOptions shape{
        .num_tasks = 200, .num_buffers = 12, .num_streams = 4, .max_elems = 5000};
    const Program program = insert_events(random_program(seed, shape)).program;
    const BufferValues eager = values_after_steps(program, {.mode = CudaStepMode::kEager});
    EXPECT_EQ(values_after_steps(program, {}), eager);
    EXPECT_EQ(values_after_steps(program, {.sync_each_task = true}), eager);
  }
}

/// 64 MiB persistent, 96 MiB of which two thirds are live at once.
Program large_program() {
  StepProgram builder;
  const StreamId compute = builder.stream("compute");
  const StreamId copies = builder.stream("copies", StreamKind::kCopy);
  const BufferId out = builder.persistent("out", 16 * kMiB);
  const BufferId a = builder.step("a", 8 * kMiB);
  const BufferId b = builder.step("b", 8 * kMiB);
  const BufferId c = builder.step("c", 8 * kMiB);
  builder.fill(compute, a, 1);
  builder.copy(copies, a, b);
  builder.add(compute, b, b, c);
  builder.fill(compute, out, 2);
  return builder.finish();
}

TEST_F(CudaExecutorTest, TakesFromTheDriverWhatIsPlannedAndNothingLater) {
  make_cuda_executor(large_program())->run(0);  // loads the kernels and the driver's own pools
  const MemoryPlan plan = memory_of({large_program()});
  const size_t before = free_device_bytes();
  const auto executor = make_cuda_executor(large_program());
  const size_t constructed = free_device_bytes();
  for (int step = 0; step < 3; ++step) {
    executor->run(0);
  }
  const size_t after_steps = free_device_bytes();

  EXPECT_EQ(plan.peak_bytes(),
            128 * kMiB);  // whole pages of the device, so the driver adds nothing
  EXPECT_EQ(executor->allocated_bytes(), plan.peak_bytes());
  EXPECT_EQ(executor->workspace_bytes(), kFoundBytes);
  EXPECT_EQ(after_steps, constructed);
  const auto taken = static_cast<int64_t>(before - constructed);
  EXPECT_GE(taken, plan.peak_bytes());
  EXPECT_LE(taken, plan.peak_bytes() + 4 * kMiB);  // graph and streams, in pages of 2 MiB
}

/// Makes kernels that take scratch by the value that they fill with, and look at their arguments.
struct ScratchKernels {
  std::map<double, CudaKernelArgs> seen;

  CudaKernelFactory factory() {
    return [this](const OpSpec& spec, CudaContext&) {
      const double value = attributes_of<FillAttributes>(spec).value;
      return CudaKernel{[this, value](const CudaKernelArgs& args) { seen[value] = args; },
                        static_cast<size_t>(value)};
    };
  }
};

Program fills_on_two_streams() {
  StepProgram builder;
  const StreamId compute = builder.stream("compute");
  const StreamId comm = builder.stream("comm", StreamKind::kComm);
  const BufferId a = builder.persistent("a", 4);
  const BufferId b = builder.persistent("b", 4);
  builder.fill(compute, a, 100);
  builder.fill(compute, a, 300);
  builder.fill(comm, b, 500);
  Program program = builder.finish();
  program.streams[comm.index()].priority = 2;
  return program;
}

TEST_F(CudaExecutorTest, KnowsWhenAStepEndedThatTheHostWaitsForLate) {
  make_cuda_executor(large_program())->run(0);  // loads the kernels
  const auto executor = make_cuda_executor(large_program());
  constexpr std::chrono::milliseconds kElsewhere{300};
  for (int step = 0; step < 3; ++step) {
    executor->launch(0);
    std::this_thread::sleep_for(kElsewhere);
    executor->wait();
    EXPECT_GT(executor->lateness(), kElsewhere / 2);  // the step takes less than a millisecond
    executor->run(0);
    EXPECT_LT(executor->lateness(), kElsewhere / 2);
  }
}

TEST_F(CudaExecutorTest, EachStreamHasTheScratchOfItsLargestKernel) {
  ScratchKernels kernels;
  const auto executor =
      make_cuda_executor(fills_on_two_streams(), {.make_kernel = kernels.factory()});
  EXPECT_EQ(executor->workspace_bytes(), 300 + 500 + kFoundBytes);
  executor->run(0);
  EXPECT_NE(kernels.seen[100].scratch, nullptr);
  EXPECT_EQ(kernels.seen[100].scratch, kernels.seen[300].scratch);
  EXPECT_NE(kernels.seen[100].scratch, kernels.seen[500].scratch);
}

TEST_F(CudaExecutorTest, StreamsHaveTheirPriorities) {
  ScratchKernels kernels;
  const auto executor =
      make_cuda_executor(fills_on_two_streams(), {.make_kernel = kernels.factory()});
  const auto priority_of = [&](double value) {
    int priority = 0;
    BRAID_CUDA_CHECK(cudaStreamGetPriority(kernels.seen.at(value).stream, &priority));
    return priority;
  };
  EXPECT_EQ(priority_of(100), 0);
  EXPECT_EQ(priority_of(500), -2);
}

/// A task that is fine, and one that is not.
struct TwoTasks {
  StepProgram builder;
  Program program;

  explicit TwoTasks(double second) {
    const StreamId compute = builder.stream("compute");
    const BufferId a = builder.step("a", 6);
    const BufferId out = builder.persistent("out", 6);
    builder.fill(compute, a, 1);
    builder.fill(compute, a, second);
    builder.copy(compute, a, out);
    program = builder.finish();
  }
};

TEST_F(CudaExecutorTest, FiniteChecksNameTheTaskAndTheFirstElement) {
  const Program program = TwoTasks(std::numeric_limits<double>::infinity()).program;
  const auto executor = make_cuda_executor(program);
  executor->set_finite_checks(true);
  EXPECT_EQ(message_of<DeviceError>([&] { executor->run(0); }),
            "rank 0, stream compute, task 1 (" + describe_task(program, TaskId(1)) +
                "): wrote NaN or infinity to element 0 of buffer a");
}

TEST_F(CudaExecutorTest, ATaskThatCannotBeCapturedIsNamedAtConstruction) {
  const Program program = TwoTasks(13).program;
  const CudaKernelFactory failing = [](const OpSpec& spec, CudaContext& context) {
    CudaKernel kernel = make_cuda_kernel(spec, context);
    if (is_fill_of(spec, 13)) {
      kernel.launch = [](const CudaKernelArgs& args) {
        BRAID_CUDA_CHECK(cudaStreamSynchronize(args.stream));
      };
    }
    return kernel;
  };
  EXPECT_THAT(
      message_of<DeviceError>([&] { make_cuda_executor(program, {.make_kernel = failing}); }),
      AllOf(HasSubstr("rank 0, stream compute, task 1 (fill"),
            HasSubstr("cudaStreamSynchronize(args.stream)")));
  // Nothing of it stays behind.
  const auto executor = make_cuda_executor(program);
  executor->run(0);
  executor->run(0);
  EXPECT_THAT(read_floats(*executor, "out", 6), Each(13.0f));
}

/// Runs a step in which the second task reads far outside of device memory; prints the error.
[[noreturn]] void run_bad_address(const CudaExecutorOptions& given) {
  CudaExecutorOptions options = given;
  options.make_kernel = [](const OpSpec& spec, CudaContext& context) {
    CudaKernel kernel = make_cuda_kernel(spec, context);
    if (is_fill_of(spec, 13)) {
      kernel.launch = [launch = kernel.launch](const CudaKernelArgs& args) {
        std::byte* const nowhere[] = {reinterpret_cast<std::byte*>(uintptr_t{1} << 20)};
        launch({.operands = nowhere, .scratch = args.scratch, .stream = args.stream});
      };
    }
    return kernel;
  };
  const std::string message =
      message_of<DeviceError>([&] { make_cuda_executor(TwoTasks(13).program, options)->run(0); });
  std::fprintf(stderr, "%s\n", message.c_str());
  std::_Exit(0);
}

// A device error is the end of the process's work on the device, so it happens in a process of its
// own.
TEST_F(CudaExecutorTest, ErrorsOfTheDeviceSurfaceAtWait) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_bad_address({.sync_each_task = true}), ::testing::ExitedWithCode(0),
              "rank 0, stream compute, task 1 .fill.*illegal memory access");
  EXPECT_EXIT(run_bad_address({}), ::testing::ExitedWithCode(0),
              "rank 0.*illegal memory access.*BRAID_SYNC_TASKS");
}

TEST_F(CudaExecutorTest, RefusesCommunicationWithoutARendezvous) {
  StepProgram builder(0, 2);
  const StreamId comm = builder.stream("comm", StreamKind::kComm);
  const BufferId x = builder.persistent("x", 3);
  builder.all_reduce(comm, builder.group("data", {0, 1}), x);
  EXPECT_THAT(message_of<InternalError>([&] { make_cuda_executor(builder.finish()); }),
              HasSubstr("rank 0 communicates, and has no rendezvous"));
}

TEST_F(CudaExecutorTest, SaysHowMuchMemoryThereIsWhenItIsNotEnough) {
  StepProgram builder;
  builder.fill(builder.stream("compute"), builder.persistent("huge", int64_t{1} << 45), 1);
  EXPECT_THAT(message_of<DeviceError>([&] { make_cuda_executor(builder.finish()); }),
              AllOf(HasSubstr("persistent buffers of rank 0: 140737488355328 bytes are needed"),
                    HasSubstr("are free")));
}

TEST_F(CudaExecutorTest, PoisonsStepMemoryBeforeEachStep) {
  StepProgram builder;
  const StreamId compute = builder.stream("compute");
  const BufferId a = builder.step("a", 5);
  const BufferId out = builder.persistent("out", 5);
  builder.fill(compute, a, 1);
  builder.copy(compute, a, out);
  Program program = builder.finish();
  const CudaKernelFactory lazy = [](const OpSpec& spec, CudaContext& context) {
    CudaKernel kernel = make_cuda_kernel(spec, context);
    if (spec.op == "fill") {
      kernel.launch = [](const CudaKernelArgs&) {};
    }
    return kernel;
  };
  const auto executor =
      make_cuda_executor(program, {.poison_step_arena = true, .make_kernel = lazy});
  for (int step = 0; step < 2; ++step) {
    executor->run(0);
    for (const float value : read_floats(*executor, "out", 5)) {
      EXPECT_TRUE(std::isnan(value));
    }
  }
}

}  // namespace
}  // namespace braid
