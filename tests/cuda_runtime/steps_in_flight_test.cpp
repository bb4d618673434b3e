// Training on GPUs with the next step launched before the one in front has ended: the same bits,
// files and messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/expect_error.h"
#include "plan/run_spec.h"
#include "runtime/device.h"
#include "support/time_limit.h"
#include "support/whole_runs.h"

namespace braid {
namespace {

using ::testing::ContainsRegex;

RunConfig on_gpus(RunConfig config, int64_t ranks) {
  config.model.width = 256;
  config.train.sequence = 64;
  config.train.dtype = "bfloat16";
  config.parallel.ranks = ranks;
  config.runtime.device = "cuda";
  return config;
}

std::string why_not(const FoundGpus& gpus, int64_t ranks) {
  if (static_cast<int64_t>(gpus.usable.size()) < ranks) {
    return fmt::format("needs {} GPUs, and there are {}", ranks, gpus.usable.size());
  }
  return ranks > 1 ? gpus.why_alone : "";
}

/// By number of ranks.
class CudaRunsInFlight : public WholeRuns, public ::testing::WithParamInterface<int64_t> {
 protected:
  void SetUp() override {
    if (const std::string why = why_not(gpus_, GetParam()); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }

  RunConfig gpu_config(const std::string& run, int64_t steps_in_flight) const {
    RunConfig made = on_gpus(config(run), GetParam());
    made.runtime.steps_in_flight = steps_in_flight;
    return made;
  }

  const FoundGpus gpus_ = find_gpus();
  const TimeLimit limit_{240};
};

TEST_P(CudaRunsInFlight, GiveTheBitsOfOneAfterTheOther) {
  const RunConfig config = resolved(on_gpus(small_config(), GetParam()));
  EngineOptions options{.device = choose_device(config, gpus_), .poison_step_arena = true};
  const Outcome two = train_steps(config, options, 50);
  EXPECT_LT(two.losses.back(), two.losses.front());
  options.steps_in_flight = 1;
  expect_same_bits(train_steps(config, options, 50), two);
  options.eager = true;
  expect_same_bits(train_steps(config, options, 50), two);
  options.steps_in_flight = 2;
  expect_same_bits(train_steps(config, options, 50), two);
}

TEST_P(CudaRunsInFlight, HaveTwo) {
  const RunConfig config = resolved(on_gpus(small_config(), GetParam()));
  Engine engine(plan_run(resolve_run(config, 50)), {.device = choose_device(config, gpus_)});
  EXPECT_EQ(engine.max_steps_in_flight(), 2);
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = microbatch_sequences(config)}});
  for (int64_t step = 1; step <= 2; ++step) {  // which are in flight when the engine ends
    engine.begin_step(*loader.next(), config.optimizer, 1e-3, step);
  }
}

TEST_P(CudaRunsInFlight, LeaveTheSameFolder) {
  train_in(gpu_config("one", 1));
  train_in(gpu_config("two", 2));
  EXPECT_EQ(records_of(metrics("two")), records_of(metrics("one")));
  EXPECT_EQ(kinds_of_lines(read("two/metrics.jsonl")), kinds_of_lines(read("one/metrics.jsonl")));
  for (const int64_t step : {4, 8, 12}) {
    expect_same_files("two", "one", step, GetParam());
  }
  const nlohmann::json report = nlohmann::json::parse(read("two/report.json"));
  EXPECT_EQ(report["timeline"]["ranks"].size(), static_cast<size_t>(GetParam()));
  EXPECT_EQ(report["timeline"]["ranks"][0]["step"], 7);
}

TEST_P(CudaRunsInFlight, ALossThatIsNotFiniteStopsWithItsStep) {
  RunConfig c = gpu_config("one", 1);
  c.optimizer.learning_rate = 1e30;
  c.optimizer.warmup_steps = 0;
  c.checkpoint.interval = 0;
  c.eval.interval = 100;
  c.logging.trace_steps = {};
  const std::string one = message_of<DeviceError>([&] { train_in(c); });
  EXPECT_THAT(one, ContainsRegex("^step [0-9]+: loss .*runtime.detect_nan = \"loss\"$"));
  c.runtime.steps_in_flight = 2;
  c.logging.run_folder = path("two");
  EXPECT_EQ(message_of<DeviceError>([&] { train_in(c); }), one);
  EXPECT_EQ(records_of(metrics("two")), records_of(metrics("one")));
  c.runtime.detect_nan = "tensors";
  c.logging.run_folder = path("tensors");
  EXPECT_THAT(message_of<DeviceError>([&] { train_in(c); }),
              ContainsRegex("run again: rank [0-9]+, stream .* wrote NaN or infinity"));
}

/// A rank that launches some steps, and then no more.
class LeavingExecutor final : public Executor {
 public:
  LeavingExecutor(std::unique_ptr<Executor> rank, int num_steps)
      : rank_(std::move(rank)), num_steps_(num_steps) {}

  void launch(size_t program_index) override {
    if (num_launched_++ < num_steps_) {
      rank_->launch(program_index);
    }
  }
  int max_steps_in_flight() const override { return rank_->max_steps_in_flight(); }
  bool launch_may_wait() const override { return rank_->launch_may_wait(); }
  void wait() override {
    if (num_waited_++ < num_steps_) {
      rank_->wait();
    }
  }
  void write(std::string_view buffer, int64_t offset_bytes,
             std::span<const std::byte> bytes) override {
    rank_->write(buffer, offset_bytes, bytes);
  }
  void read(std::string_view buffer, int64_t offset_bytes, std::span<std::byte> bytes) override {
    rank_->read(buffer, offset_bytes, bytes);
  }
  void enqueue_write(std::string_view buffer, int64_t offset_bytes,
                     std::span<const std::byte> bytes) override {
    rank_->enqueue_write(buffer, offset_bytes, bytes);
  }
  void enqueue_read(std::string_view buffer, int64_t offset_bytes,
                    std::span<std::byte> bytes) override {
    rank_->enqueue_read(buffer, offset_bytes, bytes);
  }
  void zero(std::string_view buffer) override { rank_->zero(buffer); }
  HostBlock host_block(int64_t size_bytes) override { return rank_->host_block(size_bytes); }
  void set_finite_checks(bool enabled) override { rank_->set_finite_checks(enabled); }
  void set_tracing(bool enabled) override { rank_->set_tracing(enabled); }
  RankTimeline timeline() const override { return rank_->timeline(); }
  int64_t allocated_bytes() const override { return rank_->allocated_bytes(); }

 private:
  std::unique_ptr<Executor> rank_;
  int num_steps_;
  int num_launched_ = 0;
  int num_waited_ = 0;
};

// The step after the stuck one is launched, and must not delay what ends the stuck one.
TEST_P(CudaRunsInFlight, ARankThatLeavesEndsTheRunWithinTheTimeout) {
  if (GetParam() < 2) {
    GTEST_SKIP() << "one rank waits for nobody";
  }
  RunConfig config = on_gpus(small_config(), GetParam());
  config.model.layers = 24;  // some 1,000 tasks
  config = resolved(config);
  const auto begin = std::chrono::steady_clock::now();
  {
    EngineOptions options{.device = choose_device(config, gpus_), .timeout_ns = 2'000'000'000};
    options.wrap_executor = [](std::unique_ptr<Executor> made, int rank) {
      return std::make_unique<LeavingExecutor>(std::move(made), rank == 1 ? 4 : 1'000);
    };
    EXPECT_THAT(message_of<DeviceError>([&] { train_steps(config, options, 20); }),
                ContainsRegex("^rank [0-9]+, step 4 of program [^ ]+, stream [^ ]+, task [0-9]+ "
                              "\\(.*\\): waits with .* in group [^ ]+, call [0-9]+, for rank 1; "
                              "rank 1: in step 3, last call .*, finished; the step has not ended "
                              "after .* s"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(90));
}

INSTANTIATE_TEST_SUITE_P(, CudaRunsInFlight, ::testing::Values(1, 2, 4),
                         [](const auto& ranks) { return fmt::format("ranks{}", ranks.param); });

}  // namespace
}  // namespace braid
