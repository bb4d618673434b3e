#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "config/validate.h"
#include "data/batch_loader.h"
#include "plan/run_plan.h"
#include "runtime/engine.h"
#include "support/model_state.h"

namespace braid {

/// Sequences of a fixed pseudo-random language: the next token is a function of the last one, with
/// some noise.
class NoisySequences final : public SampleSource {
 public:
  explicit NoisySequences(int64_t sequence) : sequence_(sequence) {}
  int64_t sequence_tokens() const override { return sequence_; }
  int64_t num_samples() const override { return 1 << 20; }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const override {
    std::mt19937 random(static_cast<uint32_t>(sample) * 7919u + 17u);
    auto token = static_cast<int32_t>(random() % 50);
    for (size_t t = 0; t < tokens.size(); ++t) {
      tokens[t] = token;
      token = random() % 10 == 0 ? static_cast<int32_t>(random() % 50) : (token * 7 + 3) % 50;
      labels[t] = token;
    }
  }

 private:
  int64_t sequence_;
};

inline RunConfig small_config() {
  RunConfig config;
  config.model.layers = 2;
  config.model.width = 32;
  config.model.heads = 4;
  config.model.kv_heads = 2;
  config.train.sequence = 16;
  config.train.microbatch = 2;
  config.train.global_batch = 8;
  config.train.steps = 30;
  config.optimizer.learning_rate = 3e-3;
  config.logging.run_folder = "unused";
  return config;
}

struct Outcome {
  std::vector<double> losses;  ///< of each step, and those of its depths of multi-token prediction
  std::vector<double> grad_norms;
  ModelState state;
};

inline ModelState state_of(const Engine& engine) {
  return whole_state(engine.plan().layout, engine.state());
}

/// Where a run that goes on begins.
struct RunStart {
  const ModelState* state = nullptr;  ///< null: fresh weights
  int64_t steps_done = 0;
  std::function<void(RunSpec&)> change = {};  ///< of what no key decides
};

inline Outcome run(RunConfig config, int64_t steps, EngineOptions options = {},
                   const RunStart& start = {}) {
  validate(config);
  config = resolved(config);
  options.poison_step_arena = true;
  RunSpec spec = resolve_run(config, 50);
  if (start.change) {
    start.change(spec);
  }
  Engine engine(plan_run(spec), options);
  engine.write_state(start.state != nullptr
                         ? *start.state
                         : initial_state(engine.plan().layout, engine.plan().run.model, 5));
  const NoisySequences source(config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = config.parallel.data,
                                        .num_microbatches = num_microbatches(config),
                                        .microbatch = microbatch_sequences(config)},
                              .eod = config.data.document_mask ? std::optional(7) : std::nullopt});
  for (int64_t step = 0; step < start.steps_done; ++step) {
    loader.next();
  }
  Outcome outcome;
  for (int64_t step = start.steps_done + 1; step <= start.steps_done + steps; ++step) {
    const StepResult result =
        engine.train_step(*loader.next(), config.optimizer, config.optimizer.learning_rate, step);
    EXPECT_FALSE(result.skipped);
    outcome.losses.push_back(result.loss);
    outcome.losses.insert(outcome.losses.end(), result.mtp_losses.begin(), result.mtp_losses.end());
    outcome.grad_norms.push_back(result.grad_norm);
  }
  outcome.state = state_of(engine);
  return outcome;
}

inline void expect_same_bits(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.grad_norms, b.grad_norms);
  EXPECT_EQ(a.state.weights, b.state.weights);
  EXPECT_EQ(a.state.exp_avg, b.state.exp_avg);
  EXPECT_EQ(a.state.exp_avg_sq, b.state.exp_avg_sq);
  EXPECT_EQ(a.state.ema, b.state.ema);
}

}  // namespace braid
