#include "calibrate/task_timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

#include "backends/cpu/cpu_executor.h"
#include "base/errors.h"
#include "ir/verify.h"
#include "ops/attributes.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

constexpr DType kF32 = DType::kF32;

OperandSpec in(Shape shape, DType dtype = kF32) {
  return {.dtype = dtype, .access = Access::kRead, .shape = shape};
}
OperandSpec out(Shape shape) {
  return {.dtype = kF32, .access = Access::kWrite, .shape = shape};
}

OpSpec add_of(int64_t elems) {
  return {"add", {}, {in({elems}), in({elems}), out({elems})}};
}

OpSpec wgrad_of(int64_t n, int64_t m, int64_t k) {
  return {"linear_wgrad",
          to_attributes(LinearWgradAttributes{.accumulate = true}),
          {in({n, k}), in({n, m}), {.dtype = kF32, .access = Access::kReadWrite, .shape = {m, k}}}};
}

OpSpec embedding_of(int64_t tokens, int64_t rows, int64_t width) {
  return {"embedding",
          to_attributes(EmbeddingAttributes{.sequence = tokens}),
          {in({tokens}, DType::kI32), in({rows, width}), out({tokens, width})}};
}

/// On the CPU, as short as can be.
TaskTimerOptions quick_options() {
  return {.make_executor = [](std::vector<Program> programs,
                              MemoryPlan plan) -> std::unique_ptr<Executor> {
            return std::make_unique<CpuExecutor>(std::move(programs), std::move(plan),
                                                 CpuExecutorOptions{.num_workers = 1});
          },
          .rotation_bytes = 1 << 16,
          .max_bytes = 1 << 24,
          .program_ns = 100'000,
          .warm_up_ns = 100'000,
          .sample_ns = 100'000,
          .num_samples = 3};
}

TEST(RepeatedTasks, TakeTurnsWithTheirOperands) {
  const std::vector<Program> programs =
      repeated_task_programs(std::array{RepeatedTask{add_of(100), 3, 6}});
  ASSERT_EQ(programs.size(), kNumFillPrograms + 1);
  const Program& program = programs[kNumFillPrograms];
  ASSERT_EQ(program.tasks.size(), 6u);
  const auto begins = [&](size_t task) {
    std::vector<std::pair<uint32_t, int64_t>> places;
    for (const BufferRange& range : program.operands_of(program.tasks[task])) {
      EXPECT_EQ(range.end - range.begin, 100);
      EXPECT_EQ(range.begin * 4 % 256, 0) << "as aligned as a buffer of its own";
      places.emplace_back(range.buffer.value, range.begin);
    }
    return places;
  };
  std::set<std::pair<uint32_t, int64_t>> all;
  for (size_t task = 0; task < 3; ++task) {
    const auto places = begins(task);
    all.insert(places.begin(), places.end());
    EXPECT_EQ(begins(task + 3), places);
  }
  EXPECT_EQ(all.size(), 9u) << "no two operands of three sets share memory";
}

TEST(RepeatedTasks, WrittenOperandsHaveBuffersOfTheirOwn) {
  const std::vector<Program> programs = repeated_task_programs(
      std::array{RepeatedTask{wgrad_of(4, 8, 16), 2, 2}, RepeatedTask{add_of(7), 1, 1}});
  for (const Program& program : programs) {
    verify_or_throw(program, "timing");
    for (const Task& task : program.tasks) {
      const auto ranges = program.operands_of(task);
      for (size_t i = 0; i < ranges.size(); ++i) {
        const bool is_fill = program.name.starts_with("fill");
        const std::string& name = program.buffers[ranges[i].buffer.index()].name;
        if (!is_fill) {
          EXPECT_EQ(name.starts_with("written."), writes(program.spec(task).operands[i].access));
        }
      }
    }
  }
}

TEST(RepeatedTasks, FillProgramsCoverEveryElement) {
  const std::vector<Program> programs =
      repeated_task_programs(std::array{RepeatedTask{add_of(3 * kSeedElems + 5), 2, 2},
                                        RepeatedTask{embedding_of(16, 50, 24), 1, 1}});
  std::set<std::string> filled;
  for (size_t i = 0; i < kNumFillPrograms; ++i) {
    std::map<uint32_t, int64_t> reached;
    for (const Task& task : programs[i].tasks) {
      const BufferRange target = programs[i].operands_of(task)[1];
      EXPECT_EQ(target.begin, reached[target.buffer.value]) << "without gaps";
      reached[target.buffer.value] = target.end;
    }
    for (const auto& [buffer, end] : reached) {
      EXPECT_EQ(end, programs[i].buffers[buffer].num_elems());
      filled.insert(programs[i].buffers[buffer].name);
    }
  }
  EXPECT_THAT(filled, testing::ElementsAre("read.f32", "written.f32"));
}

TEST(OperandIntegers, LieWhereTasksReadThem) {
  const OpSpec spec{
      "sum_rows", {}, {in({6, 4}), in({3, 2}, DType::kI32), in({6}, DType::kI32), out({3, 4})}};
  const RepeatedTask task{spec, 3, 3};
  const std::vector<int32_t> integers = operand_integers(task);
  const std::vector<Program> programs = repeated_task_programs(std::array{task});
  const Program& program = programs[kNumFillPrograms];
  const auto read = std::ranges::find(program.buffers, std::string_view("read.i32"), &Buffer::name);
  ASSERT_NE(read, program.buffers.end());
  EXPECT_EQ(std::ssize(integers), read->num_elems());
  for (const Task& repetition : program.tasks) {
    const auto ranges = program.operands_of(repetition);
    for (int64_t i = 0; i < 6; ++i) {
      const int32_t row = integers.at(static_cast<size_t>(ranges[1].begin + i));
      ASSERT_LT(row, 6);
      EXPECT_EQ(integers.at(static_cast<size_t>(ranges[2].begin + row)), i) << "the inverse";
    }
  }
}

TEST(OperandSetBytes, RoundsEachOperandUp) {
  EXPECT_EQ(operand_set_bytes(add_of(1)), 3 * 256);
  EXPECT_EQ(operand_set_bytes(add_of(64)), 3 * 256);
  EXPECT_EQ(operand_set_bytes(add_of(65)), 3 * 512);
}

/// A device with a clock of its own: a step takes 5000 ns, a task 100 ns and what its op takes.
class ClockedExecutor : public Executor {
 public:
  static constexpr int64_t kStepNs = 5000;
  static constexpr int64_t kLaunchNs = 100;

  ClockedExecutor(std::vector<Program> programs, int64_t& now_ns)
      : programs_(std::move(programs)), now_ns_(now_ns) {}

  static int64_t work_ns(const OpSpec& spec) {
    return spec.op == "linear_wgrad" ? 10 * spec.operands[2].shape[0] : 0;
  }

  void launch(size_t program) override {
    now_ns_ += kStepNs;
    for (const Task& task : programs_.at(program).tasks) {
      now_ns_ += kLaunchNs + work_ns(programs_[program].spec(task));
    }
  }
  void wait() override {}
  void write(std::string_view, int64_t, std::span<const std::byte>) override {}
  void read(std::string_view, int64_t, std::span<std::byte>) override {}
  void enqueue_write(std::string_view, int64_t, std::span<const std::byte>) override {}
  void enqueue_read(std::string_view, int64_t, std::span<std::byte>) override {}
  void zero(std::string_view) override {}
  HostBlock host_block(int64_t) override { return {}; }
  void set_finite_checks(bool) override {}
  void set_tracing(bool) override {}
  RankTimeline timeline() const override { return {}; }
  int64_t allocated_bytes() const override { return 0; }

 private:
  std::vector<Program> programs_;
  int64_t& now_ns_;
};

class ClockedTimer : public testing::Test {
 protected:
  TaskTimerOptions options() {
    TaskTimerOptions options = quick_options();
    options.make_executor = [this](std::vector<Program> programs,
                                   const MemoryPlan&) -> std::unique_ptr<Executor> {
      return std::make_unique<ClockedExecutor>(std::move(programs), now_ns_);
    };
    options.now_ns = [this] { return now_ns_; };
    return options;
  }

  int64_t now_ns_ = 0;
};

TEST_F(ClockedTimer, TellsTasksFromSteps) {
  TaskTimer timer(options());
  const Overheads overheads = timer.measure_overheads(add_of(8));
  EXPECT_EQ(overheads.launch_ns, ClockedExecutor::kLaunchNs);
  EXPECT_EQ(overheads.step_ns, ClockedExecutor::kStepNs);
}

TEST_F(ClockedTimer, TimesATaskWithoutTheStepAroundIt) {
  TaskTimer timer(options());
  timer.measure_overheads(add_of(8));
  const std::vector<OpSpec> specs{wgrad_of(4, 3, 2), add_of(100), wgrad_of(4, 700, 2)};
  for (const double guess_ns : {1.0, 500.0, 1e9}) {
    int done = 0;
    const std::vector<Timing> timings =
        timer.time(specs, std::vector<double>(specs.size(), guess_ns), [&] { ++done; });
    EXPECT_EQ(done, 3);
    EXPECT_EQ(timings, (std::vector<Timing>{{130, 0}, {100, 0}, {7100, 0}})) << guess_ns;
  }
}

TEST_F(ClockedTimer, WarmsUpAndSamplesAsLongAsItShould) {
  TaskTimerOptions long_options = options();
  long_options.warm_up_ns = 10'000'000;
  long_options.sample_ns = 1'000'000;
  long_options.num_samples = 5;
  TaskTimer timer(long_options);
  const int64_t begin_ns = now_ns_;
  timer.time(std::array{add_of(100)}, std::array{100.0}, [] {});
  EXPECT_GT(now_ns_ - begin_ns, 14'000'000);
  EXPECT_LT(now_ns_ - begin_ns, 17'000'000);
}

TEST_F(ClockedTimer, LongTasksHaveThreeSamples) {
  TaskTimerOptions short_options = options();
  short_options.num_samples = 9;
  short_options.spec_ns = 1;
  TaskTimer timer(short_options);
  timer.time(std::array{wgrad_of(4, 10'000'000, 2)}, std::array{1e8}, [] {});
  // One that loads, one that warms up, three that count, 100 ms each.
  EXPECT_NEAR(static_cast<double>(now_ns_), 5e8, 1e6);
}

// Offsets and experts out of range would be errors of the executor, too.
TEST(TaskTimer, IntegersOfExpertsAreValid) {
  const OperandSpec indices = in({7, 2}, DType::kI32);
  const auto out_i32 = [](Shape shape) {
    return OperandSpec{.dtype = DType::kI32, .access = Access::kWrite, .shape = shape};
  };
  const std::array specs{
      OpSpec{"sort_rows", {}, {indices, out_i32({7, 2}), out_i32({14}), out_i32({4}), out({3})}},
      OpSpec{"grouped_linear", {}, {in({14, 4}), in({15, 4}), in({4}, DType::kI32), out({14, 5})}}};
  TaskTimer timer(quick_options());
  EXPECT_EQ(timer.time(specs, std::array{1e4, 1e4}, [] {}).size(), 2u);
}

// A wrong guess of the duration, and ops whose integers must be tokens: a token outside of the
// vocabulary would be an error of the executor.
TEST(TaskTimer, TokensLieInTheVocabulary) {
  TaskTimer timer(quick_options());
  const std::array specs{embedding_of(40, 3, 8), embedding_of(64, 1000, 8), embedding_of(24, 1, 8)};
  const std::array guesses{1.0, 1e12, 1e3};
  EXPECT_EQ(timer.time(specs, guesses, [] {}).size(), 3u);
}

TEST(TaskTimer, ManySpecsTakeSeveralExecutors) {
  TaskTimerOptions options = quick_options();
  int num_executors = 0;
  options.make_executor = [&, make = options.make_executor](std::vector<Program> programs,
                                                            MemoryPlan plan) {
    ++num_executors;
    return make(std::move(programs), std::move(plan));
  };
  std::vector<OpSpec> specs;
  for (int64_t elems = 1; elems <= 30; ++elems) {
    specs.push_back(add_of(elems));
  }
  TaskTimer timer(options);
  const std::vector<double> guesses(specs.size(), 1e5);
  EXPECT_EQ(timer.time(specs, guesses, [] {}).size(), specs.size());
  EXPECT_EQ(num_executors, 3);
}

TEST(TimeHostCopies, HasAPointForEachSize) {
  const std::array<int64_t, 2> sizes{1024, 1 << 20};
  const HostCopyTimings timings = time_host_copies(quick_options().make_executor, sizes, 3);
  ASSERT_EQ(timings.to_device.size(), 2u);
  ASSERT_EQ(timings.to_host.size(), 2u);
  EXPECT_EQ(timings.to_host[1].bytes, 1 << 20);
  EXPECT_GT(timings.to_host[1].timing.ns, 0);
}

TEST(Summarize, IsMedianAndQuartiles) {
  EXPECT_EQ(summarize({300, 100, 200}), (Timing{200, 0.5}));
  EXPECT_EQ(summarize({7}), (Timing{7, 0}));
  EXPECT_EQ(summarize({100, 200}), (Timing{150, 0.3333}));
  EXPECT_EQ(summarize({0.1}).ns, 1) << "a duration in a profile is positive";
  EXPECT_THROW(summarize({}), InternalError);
}

}  // namespace
}  // namespace braid
