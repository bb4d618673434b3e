#include <dlfcn.h>
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "backends/cuda/captured_nodes.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/cupti_session.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/step_tracer.h"
#include "support/cuda_executors.h"
#include "support/cuda_kernel_case.h"
#include "support/random_program.h"
#include "support/step_program.h"
#include "trace/intervals.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kNoTask = TimelineKernel::kNoTask;

class TracedStep : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_gpu().empty()) {
      GTEST_SKIP() << why_no_gpu();
    }
  }
};

/// Tests of what only CUPTI can measure.
class CuptiStep : public TracedStep {
 protected:
  void SetUp() override {
    TracedStep::SetUp();
    if (IsSkipped()) {
      return;
    }
    SharedCudaContext::get();
    const TraceMethod method = find_trace_method();
    if (method.name != "CUPTI") {
      GTEST_SKIP() << "no CUPTI: " << method.detail;
    }
  }
};

Program some_program(uint32_t seed) {
  const RandomProgramOptions shape{
      .num_tasks = 120, .num_buffers = 12, .num_streams = 4, .max_elems = 5000};
  return insert_events(random_program(seed, shape)).program;
}

BufferValues values_after(CudaExecutor& executor, const Program& program,
                          const std::vector<bool>& traced) {
  BufferValues values = random_values(program, 3);
  for (const auto& [name, of_buffer] : values) {
    write_floats(executor, name, of_buffer);
  }
  for (const bool trace : traced) {
    executor.set_tracing(trace);
    executor.run(0);
  }
  for (auto& [name, of_buffer] : values) {
    of_buffer = read_floats(executor, name, of_buffer.size());
  }
  return values;
}

TEST_F(TracedStep, GivesTheBytesOfAStepThatIsNotTraced) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program program = some_program(seed);
    const std::vector<bool> never(6);
    const std::vector<bool> sometimes{false, true, true, false, true, false};
    const BufferValues plain = values_after(*make_cuda_executor(program), program, never);
    for (const CudaStepMode mode : {CudaStepMode::kGraph, CudaStepMode::kEager}) {
      const auto executor = make_cuda_executor(program, {.mode = mode});
      EXPECT_EQ(values_after(*executor, program, sometimes), plain);
    }
  }
}

/// The timeline of the second step, which a graph executor runs as a graph.
RankTimeline timeline_of_second_step(const Program& program, CudaStepMode mode) {
  const auto executor = make_cuda_executor(program, {.mode = mode});
  executor->run(0);
  executor->set_tracing(true);
  executor->run(0);
  return executor->timeline();
}

int64_t end_of(const RankTimeline& timeline) {
  int64_t end_ns = 0;
  for (const TimelineTask& task : timeline.tasks) {
    end_ns = std::max(end_ns, task.end_ns);
  }
  return end_ns;
}

TEST_F(CuptiStep, EveryKernelHasATaskAndEveryTaskAKernel) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program program = some_program(seed);
    for (const CudaStepMode mode : {CudaStepMode::kGraph, CudaStepMode::kEager}) {
      const RankTimeline timeline = timeline_of_second_step(program, mode);
      EXPECT_EQ(timeline.method, "CUPTI");
      EXPECT_EQ(timeline.remark, "");
      ASSERT_EQ(timeline.tasks.size(), program.tasks.size());
      std::vector<int> num_kernels(timeline.tasks.size());
      for (const TimelineKernel& kernel : timeline.kernels) {
        ASSERT_NE(kernel.task, kNoTask) << timeline.kernel_names[kernel.name];
        ++num_kernels[kernel.task];
      }
      for (size_t task = 0; task < num_kernels.size(); ++task) {
        const std::string& name = timeline.names[timeline.tasks[task].name];
        EXPECT_EQ(num_kernels[task], name.starts_with("all_reduce") ? 0 : 1) << name;
      }
    }
  }
}

TEST_F(CuptiStep, KernelsOfAStreamTakeNoMoreThanTheStep) {
  const RankTimeline timeline = timeline_of_second_step(some_program(11), CudaStepMode::kGraph);
  std::vector<int64_t> busy_ns(timeline.streams.size());
  for (const TimelineKernel& kernel : timeline.kernels) {
    const TimelineTask& task = timeline.tasks.at(kernel.task);
    EXPECT_LE(task.start_ns, kernel.start_ns);
    EXPECT_LT(kernel.start_ns, kernel.end_ns);
    EXPECT_LE(kernel.end_ns, task.end_ns);
    busy_ns[task.stream] += kernel.end_ns - kernel.start_ns;
  }
  for (const int64_t busy : busy_ns) {
    EXPECT_GT(busy, 0);
    EXPECT_LE(busy, end_of(timeline));
  }
  EXPECT_EQ(timeline.kernels.front().start_ns, 0);
}

/// Names of the kernels of each task, in order of the tasks.
std::vector<std::pair<std::string, std::multiset<std::string>>> work_of(
    const RankTimeline& timeline) {
  std::vector<std::pair<std::string, std::multiset<std::string>>> work;
  for (const TimelineTask& task : timeline.tasks) {
    work.push_back({timeline.names[task.name], {}});
  }
  for (const TimelineKernel& kernel : timeline.kernels) {
    work.at(kernel.task).second.insert(timeline.kernel_names[kernel.name]);
  }
  return work;
}

TEST_F(CuptiStep, GraphAndEagerStepsRunTheSameKernelsForTheSameTasks) {
  const Program program = some_program(21);
  EXPECT_EQ(work_of(timeline_of_second_step(program, CudaStepMode::kGraph)),
            work_of(timeline_of_second_step(program, CudaStepMode::kEager)));
}

/// Two streams that have nothing to do with each other, of kernels that take some microseconds, so
/// that the host, which is slower while CUPTI listens, has launched both long before either ends.
Program two_independent_streams() {
  constexpr int kTasks = 30;
  constexpr int64_t kElems = 8 << 20;
  StepProgram builder;
  const StreamId first = builder.stream("first");
  const StreamId second = builder.stream("second");
  const BufferId a = builder.persistent("a", kElems);
  const BufferId b = builder.persistent("b", kElems);
  for (int i = 0; i < kTasks; ++i) {
    builder.fill(first, a, i);
    builder.fill(second, b, i);
  }
  return builder.finish();
}

TEST_F(CuptiStep, IndependentStreamsRunAtTheSameTime) {
  const RankTimeline timeline =
      timeline_of_second_step(two_independent_streams(), CudaStepMode::kGraph);
  std::vector<Interval> extent(2, {INT64_MAX, 0});
  for (const TimelineTask& task : timeline.tasks) {
    Interval& of_stream = extent[task.stream];
    of_stream.begin_ns = std::min(of_stream.begin_ns, task.start_ns);
    of_stream.end_ns = std::max(of_stream.end_ns, task.end_ns);
  }
  EXPECT_GT(overlap_ns({extent[0]}, {extent[1]}), end_of(timeline) / 2);
}

TEST_F(CuptiStep, CanBeTracedAgainAndAgain) {
  const Program program = some_program(31);
  const auto executor = make_cuda_executor(program);
  executor->run(0);
  const auto work = work_of(timeline_of_second_step(program, CudaStepMode::kGraph));
  for (int window = 0; window < 4; ++window) {
    executor->set_tracing(true);
    for (int step = 0; step < 2; ++step) {
      executor->run(0);
      EXPECT_EQ(work_of(executor->timeline()), work);
    }
    executor->set_tracing(false);
    executor->run(0);
    EXPECT_EQ(work_of(executor->timeline()), work);  // still that of the last traced step
  }
}

// As the ranks of one process do.
TEST_F(CuptiStep, ExecutorsThatRunTogetherHaveTheirOwnTimelines) {
  const Program programs[] = {some_program(41), some_program(42)};
  std::vector<std::unique_ptr<CudaExecutor>> executors;
  for (const Program& program : programs) {
    executors.push_back(make_cuda_executor(program));
    executors.back()->run(0);
    executors.back()->set_tracing(true);
  }
  for (int step = 0; step < 2; ++step) {
    for (const auto& executor : executors) {
      executor->launch(0);
    }
    for (const auto& executor : executors) {
      executor->wait();
    }
    for (size_t i = 0; i < executors.size(); ++i) {
      const RankTimeline timeline = executors[i]->timeline();
      const auto num_own = static_cast<size_t>(
          std::count_if(timeline.kernels.begin(), timeline.kernels.end(),
                        [](const TimelineKernel& kernel) { return kernel.task != kNoTask; }));
      const auto num_communications = static_cast<size_t>(
          std::count_if(timeline.tasks.begin(), timeline.tasks.end(),
                        [](const TimelineTask& task) { return task.communication; }));
      EXPECT_EQ(num_own + num_communications, programs[i].tasks.size());
      // Both are on one device here, so each sees the other's kernels too.
      EXPECT_THAT(timeline.remark, HasSubstr("work of no task"));
    }
  }
}

TEST_F(CuptiStep, PoisoningIsWorkOfNoTask) {
  const Program program = some_program(51);
  const auto executor = make_cuda_executor(program, {.poison_step_arena = true});
  executor->run(0);
  executor->set_tracing(true);
  executor->run(0);
  const RankTimeline timeline = executor->timeline();
  const auto num_foreign =
      std::count_if(timeline.kernels.begin(), timeline.kernels.end(),
                    [](const TimelineKernel& kernel) { return kernel.task == kNoTask; });
  EXPECT_EQ(num_foreign, 1);
  EXPECT_THAT(timeline.remark, HasSubstr("work of no task: 1 kernel"));
}

/// Holds CUPTI as another profiler would.
class OtherProfiler {
 public:
  OtherProfiler() {
    const std::string name = fmt::format("libcupti.so.{}", CUDART_VERSION / 1000);
    library_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) {
      const auto subscribe = reinterpret_cast<Subscribe>(dlsym(library_, "cuptiSubscribe"));
      attached_ = subscribe(&subscriber_, &ignore, nullptr) == 0;
    }
  }
  ~OtherProfiler() {
    if (attached_) {
      reinterpret_cast<int (*)(void*)>(dlsym(library_, "cuptiUnsubscribe"))(subscriber_);
    }
  }
  OtherProfiler(const OtherProfiler&) = delete;
  OtherProfiler& operator=(const OtherProfiler&) = delete;

  bool attached() const { return attached_; }

 private:
  using Callback = void (*)(void*, int, uint32_t, const void*);
  using Subscribe = int (*)(void**, Callback, void*);
  static void ignore(void*, int, uint32_t, const void*) {}

  void* library_ = nullptr;
  void* subscriber_ = nullptr;
  bool attached_ = false;
};

TEST_F(CuptiStep, IsTimedByEventsWhileAnotherProfilerIsAttached) {
  const Program program = some_program(61);
  const auto executor = make_cuda_executor(program);
  executor->run(0);
  {
    const OtherProfiler other;
    if (!other.attached()) {
      GTEST_SKIP() << "libcupti is not where the loader looks";
    }
    executor->set_tracing(true);
    executor->run(0);
    const RankTimeline timeline = executor->timeline();
    EXPECT_EQ(timeline.method, "events");
    EXPECT_THAT(timeline.remark, HasSubstr("another profiler is attached"));
    EXPECT_EQ(timeline.tasks.size(), program.tasks.size());
    EXPECT_TRUE(timeline.kernels.empty());
    executor->set_tracing(false);
  }
  executor->set_tracing(true);
  executor->run(0);
  EXPECT_EQ(executor->timeline().method, "CUPTI");
}

// Copies between devices have records of a kind of their own.
TEST_F(CuptiStep, CopiesToAnotherDeviceAreWorkOfTheirNode) {
  int num_gpus = 0;
  BRAID_CUDA_CHECK(cudaGetDeviceCount(&num_gpus));
  if (num_gpus < 2) {
    GTEST_SKIP() << "needs 2 GPUs";
  }
  constexpr size_t kBytes = size_t{8} << 20;
  BRAID_CUDA_CHECK(cudaSetDevice(1));
  const DeviceArena there(kBytes, "there");
  BRAID_CUDA_CHECK(cudaSetDevice(0));
  const DeviceArena here(kBytes, "here");
  const CudaStream stream(0);
  const auto session = CuptiSession::open();
  CapturedNodes captured;
  CudaCapture capture(stream);
  captured.start_task(5, stream);
  BRAID_CUDA_CHECK(cudaMemcpyPeerAsync(there.data(), 1, here.data(), 0, kBytes, stream));
  captured.end_task(5, stream);
  const CudaGraph graph = capture.end();
  std::vector<NodeOfTask> nodes;
  for (const CapturedNodes::Node& entry : captured.nodes_with_work()) {
    nodes.push_back({session->node_id(entry.node), entry.task});
  }
  CudaGraphExec executable;
  const auto clones = session->clones_of([&] { executable = CudaGraphExec(graph, stream); });
  const TaskOfNode tasks = tasks_of_nodes(nodes, clones);
  ActivityRecording recording(session, 0, RecordedWork::kGraph, &tasks);
  BRAID_CUDA_CHECK(cudaGraphLaunch(executable, stream));
  BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
  recording.finish();
  ASSERT_EQ(recording.log().activities.size(), 1u);
  const DeviceActivity& copy = recording.log().activities[0];
  EXPECT_EQ(tasks.at(copy.graph_node), 5u);
  EXPECT_GT(copy.end_ns, copy.start_ns);
  EXPECT_THAT(recording.log().names.at(copy.name), HasSubstr("copy"));
}

// ---- which nodes a task captured ----

std::map<uint32_t, int> nodes_by_task(const CapturedNodes& captured) {
  std::map<uint32_t, int> count;
  for (const CapturedNodes::Node& entry : captured.nodes_with_work()) {
    ++count[entry.task];
  }
  return count;
}

class CapturedNodesTest : public TracedStep {
 protected:
  void fill(cudaStream_t stream) {
    BRAID_CUDA_CHECK(cudaMemsetAsync(memory_.data(), 0, 16, stream));
  }

  DeviceArena memory_;
};

TEST_F(CapturedNodesTest, FollowsForksInsideATaskAndEventsBetweenTasks) {
  SharedCudaContext::get();
  memory_ = DeviceArena(256, "test");
  const CudaStream a(0);
  const CudaStream b(0);
  const CudaStream inner(0);
  const CudaEvent started(EventTiming::kNone);
  const CudaEvent forked(EventTiming::kNone);
  const CudaEvent joined(EventTiming::kNone);
  const CudaEvent ended(EventTiming::kNone);
  CapturedNodes captured;
  CudaCapture capture(a);
  captured.start_task(7, a);
  fill(a);
  fill(a);
  captured.end_task(7, a);
  BRAID_CUDA_CHECK(cudaEventRecord(started, a));
  BRAID_CUDA_CHECK(cudaStreamWaitEvent(b, started));
  captured.start_task(8, b);  // forks and joins a stream of its own, and runs some host code
  fill(b);
  BRAID_CUDA_CHECK(cudaEventRecord(forked, b));
  BRAID_CUDA_CHECK(cudaStreamWaitEvent(inner, forked));
  fill(inner);
  fill(inner);
  BRAID_CUDA_CHECK(cudaLaunchHostFunc(
      b, [](void*) {}, nullptr));
  BRAID_CUDA_CHECK(cudaEventRecord(joined, inner));
  BRAID_CUDA_CHECK(cudaStreamWaitEvent(b, joined));
  captured.end_task(8, b);
  captured.start_task(9, a);  // nothing
  captured.end_task(9, a);
  BRAID_CUDA_CHECK(cudaEventRecord(ended, b));
  BRAID_CUDA_CHECK(cudaStreamWaitEvent(a, ended));
  captured.start_task(10, a);
  fill(a);
  captured.end_task(10, a);
  const CudaGraph graph = capture.end();
  EXPECT_EQ(nodes_by_task(captured), (std::map<uint32_t, int>{{7, 2}, {8, 3}, {10, 1}}));
}

}  // namespace
}  // namespace braid
