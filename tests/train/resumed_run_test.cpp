#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/state_file.h"
#include "config/fields.h"
#include "config/value.h"
#include "support/thinned.h"
#include "support/whole_runs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// A run in folder "run" that was stopped after two steps, and goes on.
class ResumedRun : public WholeRuns {
 protected:
  ResumedRun() { run(config("run"), 2); }

  TrainingSummary run(const RunConfig& config, std::optional<int64_t> stop_after = std::nullopt) {
    TrainerOptions options;
    options.stop_after_step = stop_after;
    return train_in(config, options);
  }

  template <class Change>
  std::string refusal(const Change& change) {
    RunConfig c = config("run");
    change(c);
    return message_of<ConfigError>([&] { run(c); });
  }

  TrainingSummary run_allowed(const RunConfig& config, std::vector<std::string> allowed) {
    TrainerOptions options;
    options.allowed_changes = std::move(allowed);
    return train_in(config, options);
  }
};

TEST_F(ResumedRun, RefusesAnotherModel) {
  EXPECT_THAT(
      refusal([](RunConfig& c) { c.model.width = 64; }),
      AllOf(HasSubstr("checkpoints/step_00000002 is of another run: model.width = 32 -> 64"),
            HasSubstr("--allow-change ")));
  // None of these shows in the shapes of the tensors that the model has.
  EXPECT_THAT(refusal([](RunConfig& c) { c.model.layers = 1; }),
              HasSubstr("run: model.layers = 2 -> 1; set the former values, give "
                        "--allow-change model.layers to continue it all the same, or set "));
  EXPECT_THAT(refusal([](RunConfig& c) { c.model.heads = c.model.kv_heads = 2; }),
              HasSubstr("model.heads = 4 -> 2"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.model.rope_theta = 5e5; }),
              HasSubstr("model.rope_theta = 10000.0 -> 500000.0"));
}

// Even if named: trained weights would be dropped.
TEST_F(ResumedRun, RefusesTensorsThatTheModelDoesNotHave) {
  RunConfig c = config("run");
  c.model.tied_embeddings = true;
  EXPECT_THAT(message_of<DataError>([&] { run_allowed(c, {"model.tied_embeddings"}); }),
              HasSubstr("has the tensor \"head.output\""));
}

TEST_F(ResumedRun, RefusesOtherDataUnlessTheyAreNamed) {
  EXPECT_THAT(refusal([](RunConfig& c) { c.data.split = "80,20,0"; }),
              HasSubstr("data.split = \"90,10,0\" -> \"80,20,0\""));
  EXPECT_THAT(refusal([](RunConfig& c) { c.train.seed = 2; }),
              HasSubstr("--allow-change data.seed,train.seed to "));
  write_test_file(path("moved.txt"), read("corpus.txt"));
  RunConfig c = config("run");
  c.data.train = path("moved.txt");
  run(c, 3);
  EXPECT_THAT(output_, HasSubstr("changed  data.train = "));
  write_test_file(path("moved.txt"), read("corpus.txt") + "a dog sees.\n");
  EXPECT_THAT(message_of<ConfigError>([&] { run(c); }),
              AllOf(HasSubstr("content of the training data: "),
                    HasSubstr("--allow-change data.train to ")));
  EXPECT_EQ(run_allowed(c, {"data.train"}).last_step, 12);
}

TEST_F(ResumedRun, ContinuesABlendBitwise) {
  write_test_file(path("more.txt"), random_letters() + "a b c d e\n\n");
  const auto blended = [this](const std::string& folder, const std::string& weight) {
    RunConfig c = config(folder);
    c.data.train = "";
    c.data.blend = {weight + " " + path("corpus.txt"), "0.25 " + path("more.txt")};
    return c;
  };
  run(blended("whole", "0.75"));
  run(blended("parts", "0.75"), 5);
  EXPECT_THAT(message_of<ConfigError>([&] { run(blended("parts", "0.5")); }),
              AllOf(HasSubstr("content of the training data: 0.75 of "),
                    HasSubstr("--allow-change data.blend to ")));
  run(blended("parts", "0.75"));
  EXPECT_EQ(read_metrics(path("whole/metrics.jsonl")).evaluations.back().loss,
            read_metrics(path("parts/metrics.jsonl")).evaluations.back().loss);
  EXPECT_EQ(run_allowed(blended("parts", "0.5"), {"data.blend"}).last_step, 12);
}

// Moments of another optimizer mean something else: a run that is told to go on starts with none.
TEST_F(ResumedRun, ContinuesBitwiseWithABlendForValidation) {
  write_test_file(path("more.txt"), random_letters() + "a b c d e\n\n");
  write_test_file(path("held_out.txt"), random_letters());
  const auto with_valid = [this](const std::string& folder, const std::string& weight) {
    RunConfig c = config(folder);
    c.data.split = DataConfig().split;
    c.data.valid = {weight + " " + path("held_out.txt"), "1 " + path("more.txt")};
    return c;
  };
  run(with_valid("whole", "3"));
  run(with_valid("parts", "3"), 5);
  EXPECT_THAT(message_of<ConfigError>([&] { run(with_valid("parts", "2")); }),
              HasSubstr("--allow-change data.valid to "));
  EXPECT_THAT(message_of<ConfigError>([&] {
                RunConfig c = with_valid("parts", "3");
                c.data.valid.clear();
                run(c);
              }),
              HasSubstr("data.valid"));
  run(with_valid("parts", "3"));
  const auto whole = read_metrics(path("whole/metrics.jsonl"));
  const auto parts = read_metrics(path("parts/metrics.jsonl"));
  ASSERT_EQ(whole.evaluations.size(), parts.evaluations.size());
  ASSERT_EQ(whole.steps.size(), parts.steps.size());
  for (size_t i = 0; i < whole.evaluations.size(); ++i) {
    EXPECT_EQ(whole.evaluations[i].loss, parts.evaluations[i].loss) << i;
  }
  for (size_t i = 0; i < whole.steps.size(); ++i) {
    EXPECT_EQ(whole.steps[i].loss, parts.steps[i].loss) << i;
  }
  write_test_file(path("held_out.txt"), random_letters() + "x\n");
  EXPECT_THAT(message_of<ConfigError>([&] { run(with_valid("parts", "3")); }),
              AllOf(HasSubstr("content of the validation data: "),
                    HasSubstr("--allow-change data.valid to ")));
}

TEST_F(ResumedRun, RefusesAnotherOptimizer) {
  RunConfig c = config("run");
  c.optimizer.name = "lion";
  EXPECT_THAT(message_of<ConfigError>([&] { run(c); }),
              AllOf(HasSubstr("is of another run: optimizer.name = \"adamw\" -> \"lion\"; "),
                    HasSubstr("--allow-change optimizer.name to ")));
  EXPECT_EQ(run_allowed(c, {"optimizer.name"}).last_step, 12);
}

TEST_F(ResumedRun, CountsWhatAnotherBatchConsumes) {
  RunConfig c = config("run");
  c.train.global_batch = 16;
  EXPECT_THAT(message_of<ConfigError>([&] { run(c); }),
              HasSubstr("--allow-change train.global_batch to "));
  const TrainingSummary summary = run_allowed(c, {"train.global_batch"});
  const CheckpointState state = LoadedCheckpoint(summary.checkpoint).state();
  EXPECT_EQ(state.consumed_samples, 2 * 8 + 10 * 16);
  EXPECT_EQ(state.consumed_tokens, state.consumed_samples * c.train.sequence);
  EXPECT_EQ(read_metrics(path("run/metrics.jsonl")).steps.back().consumed_samples,
            state.consumed_samples);
}

TEST_F(ResumedRun, RefusesMoreStepsOnlyIfTheyChangeTheOrderOfSamples) {
  RunConfig c = config("run");
  c.train.steps = 13;
  EXPECT_EQ(run(c, 3).last_step, 3);
  EXPECT_THAT(output_, AllOf(HasSubstr("changed  train.steps = 12 -> 13\n"),
                             HasSubstr("changed  optimizer.decay_steps = 12 -> 13\n")));
  c.train.steps = 2000;  // of several epochs
  EXPECT_THAT(message_of<ConfigError>([&] { run(c, 4); }),
              AllOf(HasSubstr("order of the samples: "), HasSubstr(" in 1 epochs"),
                    HasSubstr("--allow-change train.steps to ")));
}

TEST_F(ResumedRun, ChangesTheLayoutFreelyAndSaysSo) {
  RunConfig c = config("run");
  c.parallel.ranks = 1;
  c.memory.recompute = "auto";  // which is none here
  run(c, 3);
  EXPECT_THAT(output_, HasSubstr("changed  parallel.ranks = 2 -> 1\n"));
  EXPECT_THAT(output_, HasSubstr("changed  keys that braid chooses: none -> memory.recompute = "
                                 "\"auto\"\n"));
  c.memory.recompute = "full";
  EXPECT_EQ(run(c).last_step, 12);
  EXPECT_THAT(output_, AllOf(HasSubstr("changed  keys that braid chooses: memory.recompute = "),
                             HasSubstr("changed  memory.recompute = \"none\" -> \"full\"\n")));
}

TEST_F(ResumedRun, ContinuesCheckpointsWithoutAnIdentityAndSaysSo) {
  const std::string state = path("run/checkpoints/step_00000002/state.json");
  StoredState stored = parse_state(read_text_file(state, 1 << 20), state);
  EXPECT_THAT(stored.state.extra, Not(IsEmpty()));
  stored.state.extra.clear();
  write_test_file(state, print_state(stored));
  EXPECT_EQ(run(config("run")).last_step, 12);
  EXPECT_THAT(output_, HasSubstr("changed  the checkpoint records no identity: "));
}

/// A little more, or the other one.
struct Neighbour {
  const Field& field;

  ConfigValue operator()(bool value) const { return !value; }
  ConfigValue operator()(int64_t value) const { return value + 1; }
  ConfigValue operator()(double value) const { return value == 0 ? 0.5 : value * 0.75; }
  ConfigValue operator()(const std::string& value) const {
    const auto& names = field.limits.allowed;
    if (names.empty()) {
      return value + "x";
    }
    const auto at = std::ranges::find(names, value);
    return std::string(at == names.end() || at + 1 == names.end() ? names.front() : at[1]);
  }
  ConfigValue operator()(std::vector<int64_t> values) const {
    values.push_back(9);
    return values;
  }
  ConfigValue operator()(std::vector<std::string> values) const {
    values.emplace_back("x");
    return values;
  }
};

TEST_F(ResumedRun, NoRandomChangePassesWithoutALine) {
  std::mt19937 random(11);
  for (int i = 0; i < thinned_count(100, 4); ++i) {
    const Field& field = config_fields()[random() % config_fields().size()];
    RunConfig c = config("run");
    c.checkpoint.resume = path("run/checkpoints/step_00000002");
    c.checkpoint.folder = path("run/checkpoints");
    const ConfigValue before = value_of(field, c).value_or(empty_value(field));
    set_value(field, c, std::visit(Neighbour{field}, before));
    if (full_name(field) == "model.family") {
      c.model.family = "gpt2";  // the default is another name of nothing
    }
    if (full_name(field) == "model.rope_type") {
      c.model.rope_type = "linear";  // so is this default
    }
    bool is_refused = false;
    try {
      run(c, 2);  // nothing is left to do
    } catch (const ConfigError&) {
      is_refused = true;
    } catch (const DataError&) {  // a file that does not exist
      is_refused = true;
    }
    EXPECT_TRUE(is_refused ||
                ("\n" + output_).find("\nchanged  " + full_name(field)) != output_.npos)
        << full_name(field);
  }
}

}  // namespace
}  // namespace braid
