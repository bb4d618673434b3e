#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/temp_folder.h"
#include "plan/run_spec.h"
#include "report/metrics_file.h"
#include "support/engine_runs.h"
#include "train/trainer.h"

namespace braid {

/// As many steps as the engine can have in flight, with data and learning rates that change, and a
/// host that is late at random.
inline Outcome train_steps(const RunConfig& config, const EngineOptions& options,
                           int64_t num_steps) {
  Engine engine(plan_run(resolve_run(config, 50)), options);
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = microbatch_sequences(config)}});
  std::mt19937 random(11);
  Outcome outcome;
  const auto finish = [&] {
    const StepResult result = engine.finish_step();
    outcome.losses.push_back(result.loss);
    outcome.grad_norms.push_back(result.grad_norm);
  };
  for (int64_t step = 1; step <= num_steps; ++step) {
    if (engine.steps_in_flight() == engine.max_steps_in_flight()) {
      finish();
    }
    const double rate = 1e-3 * (1.0 + std::sin(static_cast<double>(step)));
    engine.begin_step(*loader.next(), config.optimizer, rate, step);
    if (random() % 4 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    }
  }
  while (engine.steps_in_flight() > 0) {
    finish();
  }
  outcome.state = state_of(engine);
  return outcome;
}

/// Lines of random letters out of five, a blank line after each.
inline std::string random_letters() {
  std::mt19937 random(3);
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += std::string(1, static_cast<char>('a' + random() % 5)) + (i % 40 == 39 ? "\n\n" : " ");
  }
  return text;
}

/// Whole runs of `train` in folders of a test, with evaluations, checkpoints and traced steps in
/// the middle.
class WholeRuns : public testing::Test {
 protected:
  /// Runs that train on this text.
  explicit WholeRuns(const std::string& text = random_letters()) {
    write_test_file(path("corpus.txt"), text);
  }

  RunConfig config(const std::string& run) const {
    RunConfig config = small_config();
    config.train.steps = 12;
    config.optimizer.warmup_steps = 3;
    config.parallel.ranks = 2;
    config.data.train = path("corpus.txt");
    config.data.split = "90,10,0";
    config.eval.interval = 5;
    config.eval.batches = 2;
    config.checkpoint.interval = 4;
    config.checkpoint.keep = 0;
    config.logging.run_folder = path(run);
    config.logging.interval = 1;
    config.logging.trace_steps = {2, 7};
    return config;
  }

  TrainingSummary train_in(const RunConfig& config, TrainerOptions options = {}) {
    output_.clear();
    options.print = [this](std::string_view text) { output_ += text; };
    return train(config, options);
  }

  std::string path(const std::string& relative) const { return folder_ / relative; }
  Metrics metrics(const std::string& run) const {
    return read_metrics(path(run + "/metrics.jsonl"));
  }
  std::string read(const std::string& relative) const {
    return read_text_file(path(relative), int64_t{1} << 30);
  }
  /// The checkpoints of a step, which each rank has written a part of.
  void expect_same_files(const std::string& a, const std::string& b, int64_t step,
                         int64_t num_ranks) const {
    for (int64_t rank = 1; rank <= num_ranks; ++rank) {
      for (const char* part : {"model", "optimizer"}) {
        const std::string number =
            num_ranks == 1 ? "" : fmt::format("-{:05}-of-{:05}", rank, num_ranks);
        const std::string name =
            fmt::format("/checkpoints/step_{:08}/{}{}.safetensors", step, part, number);
        EXPECT_EQ(read(a + name), read(b + name)) << name;
      }
    }
  }

  TempFolder folder_;
  std::string output_;
};

/// What is the same in each run: no times.
inline std::vector<std::string> records_of(const Metrics& metrics) {
  std::vector<std::string> records;
  for (const StepRecord& step : metrics.steps) {
    records.push_back(
        fmt::format("step {} loss {} mtp {} norm {} rate {} samples {} skipped {} nan {}",
                    step.step, step.loss, fmt::join(step.mtp_losses, " "), step.grad_norm,
                    step.learning_rate, step.consumed_samples, step.skipped_steps, step.nan_steps));
  }
  for (const EvalRecord& evaluation : metrics.evaluations) {
    records.push_back(fmt::format("evaluation {} loss {}", evaluation.step, evaluation.loss));
  }
  return records;
}

/// "step 3", "evaluation 5": the lines of metrics.jsonl in their order.
inline std::vector<std::string> kinds_of_lines(const std::string& metrics) {
  std::vector<std::string> kinds;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    kinds.push_back((record.contains("valid_loss") ? "evaluation " : "step ") +
                    std::to_string(record.at("step").get<int64_t>()));
  }
  return kinds;
}

}  // namespace braid
