#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "support/whole_runs.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// Sentences of a small grammar, a blank line after each few: something that can be learnt.
std::string corpus() {
  std::mt19937 random(3);
  const char* subjects[] = {"the cat", "a dog", "my bird", "the fish"};
  const char* verbs[] = {"sees", "hears", "likes", "finds"};
  std::string text;
  for (int i = 0; i < 600; ++i) {
    text += std::string(subjects[random() % 4]) + " " + verbs[random() % 4] + " " +
            subjects[random() % 4] + ".\n";
    text += i % 3 == 2 ? "\n" : "";
  }
  return text;
}

class Trainer : public WholeRuns {
 protected:
  Trainer() : WholeRuns(corpus()) {}

  RunConfig config(const std::string& run) const {
    RunConfig config = WholeRuns::config(run);
    config.logging.trace_steps = {2};
    return config;
  }

  TrainingSummary run(const RunConfig& config, std::optional<int64_t> stop_after = std::nullopt) {
    TrainerOptions options;
    options.stop_after_step = stop_after;
    return train_in(config, options);
  }
};

TEST_F(Trainer, LearnsAndLeavesACompleteRunFolder) {
  RunConfig c = config("run");
  c.train.steps = 80;
  c.optimizer.learning_rate = 1e-2;
  const TrainingSummary summary = run(c);
  EXPECT_EQ(summary.last_step, 80);
  EXPECT_FALSE(summary.stopped_early);
  EXPECT_LT(summary.last_eval_loss.value(), summary.first_eval_loss.value() - 1.0);
  EXPECT_LT(summary.last_eval_loss.value(), summary.unigram_entropy);
  for (const char* file : {"config.toml", "metrics.jsonl", "trace.json", "report.html",
                           "report.json", "checkpoints/latest"}) {
    EXPECT_TRUE(fs::exists(path(std::string("run/") + file))) << file;
  }
  const Metrics metrics = read_metrics(path("run/metrics.jsonl"));
  EXPECT_EQ(metrics.steps.size(), 80u);
  EXPECT_EQ(metrics.evaluations.size(), 17u);  // before the first step, and after every fifth
  EXPECT_THAT(read("run/plan.txt"), HasSubstr("\npeak "));
}

TEST_F(Trainer, ReportOfAPipelineShowsItsJobs) {
  RunConfig c = config("stages");
  c.train.steps = 3;
  c.parallel.pipeline = 2;
  run(c);
  const std::string report = read_text_file(path("stages/report.html"), int64_t{1} << 30);
  EXPECT_THAT(report, HasSubstr("\\u003csvg class="));
  EXPECT_THAT(report, HasSubstr("layout    2 ranks = tensor 1 x context 1 x data 1 x pipeline 2"));
}

TEST_F(Trainer, ResumeIsBitwise) {
  run(config("whole"));
  RunConfig c = config("parts");
  EXPECT_TRUE(run(c, 5).stopped_early);  // between two checkpoint intervals
  EXPECT_TRUE(run(c, 6).stopped_early);
  EXPECT_FALSE(run(c).stopped_early);
  expect_same_files("parts", "whole", 12, 2);
  EXPECT_EQ(records_of(metrics("parts")), records_of(metrics("whole")));
  EXPECT_EQ(metrics("whole").steps.size(), 12u);
  EXPECT_EQ(metrics("whole").evaluations.size(), 4u);  // before the first step, after 5, 10 and 12
}

// Other numbers than without masks, of the training and of the evaluation, and a resume goes on bit
// by bit.
TEST_F(Trainer, SeparatesDocumentsAndResumesThemBitwise) {
  const auto with_mask = [&](const char* name, bool mask) {
    RunConfig c = config(name);
    c.train.steps = 6;
    c.parallel.context = 2;
    c.data.document_mask = mask;
    return c;
  };
  run(with_mask("plain", false));
  run(with_mask("whole", true));
  EXPECT_TRUE(run(with_mask("parts", true), 3).stopped_early);
  run(with_mask("parts", true));
  expect_same_files("parts", "whole", 6, 2);
  EXPECT_EQ(records_of(metrics("parts")), records_of(metrics("whole")));
  EXPECT_NE(metrics("whole").steps.back().grad_norm, metrics("plain").steps.back().grad_norm);
  EXPECT_NE(metrics("whole").evaluations.back().loss, metrics("plain").evaluations.back().loss);
}

// The second token is about as hard to learn as the first; the held-out loss is that of the first.
TEST_F(Trainer, LogsMultiTokenPredictionAndResumesItBitwise) {
  const auto with_mtp = [&](const char* name) {
    RunConfig c = config(name);
    c.train.steps = 8;
    c.parallel.pipeline = 2;
    c.model.mtp_depth = 1;
    return c;
  };
  run(with_mtp("whole"));
  EXPECT_THAT(output_, ContainsRegex("\n     loss 2 ahead [0-9.]+\n"));
  EXPECT_TRUE(run(with_mtp("parts"), 5).stopped_early);
  run(with_mtp("parts"));
  expect_same_files("parts", "whole", 8, 2);
  EXPECT_EQ(records_of(metrics("parts")), records_of(metrics("whole")));
  for (const StepRecord& step : metrics("whole").steps) {
    ASSERT_EQ(step.mtp_losses.size(), 1u);
    EXPECT_NE(step.mtp_losses[0], step.loss);
    EXPECT_NEAR(step.mtp_losses[0], step.loss, 0.3 * step.loss);
  }
  EXPECT_THAT(read("whole/report.json"), HasSubstr("\"mtp_losses\":[["));
}

// Checkpoints have averages, so a run that stops has those of one that does not.
TEST_F(Trainer, KeepsAveragesOfWeightsAndResumesThemBitwise) {
  const auto with_ema = [&](const char* name, double ema) {
    RunConfig c = config(name);
    c.train.steps = 8;
    c.parallel.shard = "parameters";
    c.optimizer.ema = ema;
    return c;
  };
  run(with_ema("whole", 0.9));
  EXPECT_TRUE(run(with_ema("parts", 0.9), 5).stopped_early);
  run(with_ema("parts", 0.9));
  EXPECT_THAT(output_, Not(HasSubstr("averages")));
  expect_same_files("parts", "whole", 8, 2);
  run(with_ema("without", 0), 5);
  run(with_ema("without", 0.9));
  EXPECT_THAT(output_, HasSubstr("note     optimizer.ema = 0.9: the checkpoint has no averages of "
                                 "weights; they begin with its weights\n"));
  EXPECT_NE(read("without/checkpoints/step_00000008/optimizer-00001-of-00002.safetensors"),
            read("whole/checkpoints/step_00000008/optimizer-00001-of-00002.safetensors"));
  EXPECT_EQ(read("without/checkpoints/step_00000008/model-00001-of-00002.safetensors"),
            read("whole/checkpoints/step_00000008/model-00001-of-00002.safetensors"));
}

// The loss that is logged is without it, so that runs with and without it compare: the first steps
// are the same, and the log-sum-exp of a new model's logits is about the log of the vocabulary.
TEST_F(Trainer, LogsTheLossOfTheLogSumExpApart) {
  const auto with_z = [&](const char* name, double z_loss) {
    RunConfig c = config(name);
    c.train.steps = 6;
    c.parallel.tensor = 2;
    c.train.z_loss = z_loss;
    return c;
  };
  run(with_z("plain", 0));
  EXPECT_THAT(output_, Not(ContainsRegex("\n     z [0-9.]+\n")));
  run(with_z("whole", 0.1));
  EXPECT_THAT(output_, ContainsRegex("\n     z [0-9.]+\n"));
  EXPECT_TRUE(run(with_z("parts", 0.1), 3).stopped_early);
  run(with_z("parts", 0.1));
  EXPECT_EQ(records_of(metrics("parts")), records_of(metrics("whole")));
  const std::vector<StepRecord> plain = metrics("plain").steps;
  const std::vector<StepRecord> with = metrics("whole").steps;
  EXPECT_EQ(with.front().loss, plain.front().loss);
  EXPECT_NE(with.front().grad_norm, plain.front().grad_norm);
  const double largest = std::log(257);  // bytes and the end of a document
  EXPECT_NEAR(with.front().z_loss.value(), largest * largest, 0.1 * largest * largest);
  EXPECT_LT(*with.back().z_loss, *with.front().z_loss);
  for (size_t i = 0; i < with.size(); ++i) {
    EXPECT_EQ(metrics("parts").steps[i].z_loss, with[i].z_loss) << i;
  }
  EXPECT_FALSE(plain.front().z_loss);
}

// Rounding grows from step to step, and a router with two almost equal experts may choose the other
// one, so runs part slowly. A layout that lost a part of a gradient would be far off long before.
TEST_F(Trainer, AHybridOnFourRanksLearnsAsOnOne) {
  const auto hybrid = [&](const char* name) {
    RunConfig c = config(name);
    c.model.layers.reset();
    c.model.family = "nemotron_h";
    c.model.pattern = "M-*EM-*E";
    c.model.ffn = 64;
    c.model.mamba_num_heads = 4;
    c.model.mamba_head_dim = 16;
    c.model.ssm_state_size = 16;
    c.model.mamba_n_groups = 2;
    c.model.mamba_chunk_size = 64;
    c.model.experts = 4;
    c.model.experts_per_token = 2;
    c.model.expert_ffn = 32;
    c.model.mtp_depth = 1;
    c.train.steps = 200;
    c.eval.interval = 0;
    c.checkpoint.interval = 0;
    c.checkpoint.at_end = false;
    c.logging.trace_steps = {};
    return c;
  };
  RunConfig one = hybrid("one");
  one.parallel.ranks = 1;
  run(one);
  RunConfig four = hybrid("four");
  four.parallel.ranks = 4;
  four.parallel.pipeline = 2;
  four.parallel.expert = 2;
  four.parallel.shard = "optimizer";
  four.moe.capacity = 2;
  run(four);
  const std::vector<StepRecord> on_one = metrics("one").steps;
  const std::vector<StepRecord> on_four = metrics("four").steps;
  ASSERT_EQ(on_one.size(), 200u);
  ASSERT_EQ(on_four.size(), 200u);
  for (size_t i = 0; i < on_one.size(); ++i) {
    EXPECT_NEAR(on_four[i].loss, on_one[i].loss, (i < 10 ? 1e-5 : 0.02) * on_one[i].loss) << i;
  }
  EXPECT_LT(on_one.back().loss, on_one.front().loss - 1.0);
}

TEST_F(Trainer, AResumedRunKeepsTheStepThatWasTracedBefore) {
  const auto report = [this] { return nlohmann::json::parse(read("run/report.json")); };
  run(config("run"), 4);  // step 2 was traced
  const nlohmann::json before = report();
  ASSERT_EQ(before["timeline"]["ranks"].size(), 2u);
  run(config("run"), 6);
  run(config("run"), 8);
  EXPECT_EQ(report()["timeline"], before["timeline"]);
  EXPECT_EQ(report()["data"]["ranks"], before["data"]["ranks"]);
  EXPECT_EQ(report()["data"]["trace_remark"], "traced before the run was resumed after step 4");
  EXPECT_EQ(report()["data"]["steps"]["step"].size(), 8u);
  RunConfig c = config("run");
  c.logging.trace_steps = {10};
  EXPECT_THAT(run(c).traced_step, HasSubstr("step 10, "));
  EXPECT_EQ(report()["timeline"]["ranks"][0]["step"], 10);
  EXPECT_FALSE(report()["data"].contains("trace_remark"));
}

TEST_F(Trainer, FinishedRunHasNothingLeftToDo) {
  run(config("run"));
  const std::string checkpoint = read("run/checkpoints/step_00000012/state.json");
  const TrainingSummary again = run(config("run"));
  EXPECT_EQ(again.last_step, 12);
  EXPECT_EQ(read("run/checkpoints/step_00000012/state.json"), checkpoint);
  EXPECT_GT(again.first_eval_loss.value(),
            again.last_eval_loss.value());  // read back from the metrics
}

TEST_F(Trainer, LeavesNoCheckpointWhereNoneIsWanted) {
  RunConfig c = config("run");
  c.checkpoint.at_end = false;
  const TrainingSummary summary = run(c, 6);  // stopped between two intervals
  EXPECT_EQ(LoadedCheckpoint(summary.checkpoint).state().step, 4);
  c.checkpoint.interval = 0;
  c.logging.run_folder = path("none");
  EXPECT_EQ(run(c).checkpoint, "");
  EXPECT_FALSE(fs::exists(path("none/checkpoints")));
  EXPECT_TRUE(fs::exists(path("none/report.html")));
}

TEST_F(Trainer, RefusesARunWithoutAFolder) {
  RunConfig c = config("run");
  c.logging.run_folder = "none";
  EXPECT_THAT(message_of<ConfigError>([&] { run(c); }), HasSubstr("a run needs a folder"));
}

TEST_F(Trainer, StopRequestSavesAndEnds) {
  int64_t asked = 0;
  TrainerOptions options;
  options.print = [](std::string_view) {};
  options.stop_requested = [&] { return ++asked == 3; };
  const TrainingSummary summary = train(config("run"), options);
  EXPECT_EQ(summary.last_step, 3);
  EXPECT_TRUE(summary.stopped_early);
  EXPECT_EQ(LoadedCheckpoint(summary.checkpoint).state().step, 3);
}

TEST_F(Trainer, KeepsTheNewestCheckpoints) {
  RunConfig c = config("run");
  c.checkpoint.keep = 2;
  run(c);
  EXPECT_FALSE(fs::exists(path("run/checkpoints/step_00000004")));
  EXPECT_TRUE(fs::exists(path("run/checkpoints/step_00000008")));
  EXPECT_TRUE(fs::exists(path("run/checkpoints/step_00000012")));
}

TEST_F(Trainer, ResumeNoneStartsAnew) {
  run(config("run"), 4);
  RunConfig c = config("run");
  c.checkpoint.resume = "none";
  run(c, 1);
  EXPECT_THAT(output_, HasSubstr("/run has an earlier run, which this one does not resume but"));
  EXPECT_EQ(read_metrics(path("run/metrics.jsonl")).steps.size(), 1u);
}

TEST_F(Trainer, ResumesFromANamedCheckpointOrFolder) {
  run(config("first"), 4);
  RunConfig c = config("second");
  c.checkpoint.resume = path("first/checkpoints/step_00000004");
  EXPECT_EQ(run(c, 5).last_step, 5);
  EXPECT_EQ(read_metrics(path("second/metrics.jsonl")).steps.front().step, 5);
  c = config("third");
  c.checkpoint.resume = path("first/checkpoints");
  EXPECT_EQ(run(c, 6).last_step, 6);
  c.checkpoint.resume = path("nowhere");
  c.logging.run_folder = path("fourth");
  EXPECT_THAT(message_of<DataError>([&] { run(c); }),
              AllOf(HasSubstr("checkpoint.resume = "), HasSubstr("the folder does not exist")));
}

TEST_F(Trainer, CorruptedCheckpointIsRefusedByName) {
  const TrainingSummary summary = run(config("run"), 2);
  const std::string weights = summary.checkpoint + "/model-00002-of-00002.safetensors";
  std::string bytes = read_text_file(weights, int64_t{1} << 30);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_test_file(weights, bytes);
  EXPECT_THAT(message_of<DataError>([&] { run(config("run")); }),
              HasSubstr("model-00002-of-00002.safetensors"));
}

TEST_F(Trainer, MissingTextIsOneLine) {
  RunConfig c = config("run");
  c.data.train = path("absent.txt");
  EXPECT_THAT(message_of<DataError>([&] { run(c); }), HasSubstr("absent.txt"));
  c.data.train = "";
  EXPECT_THAT(message_of<ConfigError>([&] { run(c); }), HasSubstr("data.train: not given"));
}

TEST_F(Trainer, RunFolderThatCannotBeMadeIsOneLine) {
  RunConfig c = config("run");
  c.logging.run_folder = path("corpus.txt/run");  // below a file
  EXPECT_THAT(message_of<DataError>([&] { run(c); }), HasSubstr("logging.run_folder"));
}

TEST_F(Trainer, FullDiskLeavesNoHalfCheckpoint) {
  run(config("run"), 2);
  const std::string before = read("run/checkpoints/latest");
  {
    const FileSizeLimit limit(20000);  // the weights need more
    message_of<DataError>([&] { run(config("run"), 4); });
  }
  EXPECT_EQ(read("run/checkpoints/latest"), before);
  EXPECT_EQ(run(config("run"), 4).last_step, 4);
}

TEST_F(Trainer, SaysWhereTheTimeBeforeTheFirstStepWent) {
  run(config("run"), 1);
  EXPECT_THAT(read("run/plan.txt"),
              ContainsRegex("\nsetup    [0-9.]+ s: data [0-9.]+, device [0-9.]+, plan "
                            "[0-9.]+, kernels [0-9.]+, weights [0-9.]+\n"));
  EXPECT_THAT(output_, ContainsRegex("saved    .*checkpoints/step_00000001 in [0-9.]+ s\n"));
}

// Whatever it is called: here it is the first run's own, which the second one names.
TEST_F(Trainer, ACheckpointFolderIsLockedUnderEachOfItsNames) {
  std::string message;
  TrainerOptions options;
  options.print = [](std::string_view) {};
  options.stop_requested = [&] {
    RunConfig second = config("second");
    second.checkpoint.folder = path("second/../run/checkpoints");
    message = message_of<ConfigError>([&] { run(second); });
    return true;
  };
  train(config("run"), options);
  EXPECT_THAT(message, HasSubstr("run/checkpoints\": process "));
  RunConfig one_folder = config("run");
  one_folder.checkpoint.folder = path("run");
  one_folder.checkpoint.resume = "none";
  EXPECT_EQ(run(one_folder, 1).last_step, 1);
}

TEST_F(Trainer, AShortTrialWarmsUpToItsEnd) {
  RunConfig c = config("run");
  c.train.steps = 2;
  EXPECT_EQ(run(c).last_step, 2);
  EXPECT_THAT(output_,
              HasSubstr("note     optimizer.warmup_steps = 3: the run has train.steps = 2, "
                        "and warms up in 2\n"));
}

TEST_F(Trainer, ARunWithoutEvaluationsHasNoHeldOutLoss) {
  RunConfig c = config("run");
  c.eval.interval = 0;
  run(c, 1);
  c.eval.interval = 5;
  c.train.steps = 1;  // nothing is left to do
  EXPECT_EQ(run(c).first_eval_loss, std::nullopt);
}

TEST_F(Trainer, ASecondRunIntoTheSameFolderIsRefused) {
  RunConfig c = config("run");
  std::string message;
  TrainerOptions options;
  options.print = [](std::string_view) {};
  options.stop_requested = [&] {
    if (message.empty()) {  // in the middle of the first run
      RunConfig second = c;
      message = message_of<ConfigError>([&] { run(second); });
      second.logging.run_folder = path("other");
      second.checkpoint.folder = path("shared");
      message += "\n" + message_of<ConfigError>([&] { run(second); });
    }
    return true;
  };
  c.checkpoint.folder = path("shared");
  train(c, options);
  EXPECT_THAT(message, HasSubstr("logging.run_folder = \"" + path("run") + "\": process "));
  EXPECT_THAT(message, HasSubstr("\ncheckpoint.folder = \"" + path("shared") + "\": process "));
  EXPECT_EQ(run(c).last_step, 12);  // it may go on afterwards
}

// Only lower bounds: a busy machine makes everything longer.
TEST_F(Trainer, EmulatedLinksTakeTheirTime) {
  RunConfig c = config("run");
  c.train.steps = 1;
  c.optimizer.warmup_steps = 0;
  c.eval.interval = 0;
  c.links.data_latency_us = 40'000;
  run(c);
  EXPECT_GE(read_metrics(path("run/metrics.jsonl")).steps.front().step_ms, 40.0);
  EXPECT_THAT(read("run/config.toml"), HasSubstr("\ndata_latency_us = 40000.0\n"));
}

// Its loss is finite, and so was its gradient; its weights are not, so that no later step can be.
TEST_F(Trainer, AStepWithANonFiniteUpdateIsNotSaved) {
  RunConfig c = config("run");
  c.checkpoint.interval = 1;
  c.checkpoint.keep = 1;
  c.optimizer.warmup_steps = 0;
  c.eval.interval = 0;
  run(c, 2);
  c.optimizer.learning_rate = 3e38;
  c.optimizer.weight_decay = 10;
  EXPECT_THAT(message_of<DataError>([&] { run(c); }),
              ContainsRegex("no checkpoint of step 3 is written, because it must be finite: tensor "
                            "\".*\" has (infinity|NaN) at element [0-9]+"));
  EXPECT_TRUE(fs::exists(path("run/checkpoints/step_00000002/state.json")));
  EXPECT_EQ(read("run/checkpoints/latest"), "step_00000002\n");
}

TEST_F(Trainer, KeepsTheCheckpointThatALaterStepConfirmed) {
  RunConfig c = config("run");
  c.checkpoint.interval = 2;
  c.checkpoint.keep = 1;
  run(c, 6);
  EXPECT_FALSE(fs::exists(path("run/checkpoints/step_00000002")));
  EXPECT_TRUE(fs::exists(path("run/checkpoints/step_00000004")));
  EXPECT_TRUE(fs::exists(path("run/checkpoints/step_00000006")));
}

// A learning rate that makes the loss infinite within a few steps.
RunConfig diverging(RunConfig c) {
  c.optimizer.learning_rate = 1e30;
  c.optimizer.warmup_steps = 0;
  return c;
}

TEST_F(Trainer, NonFiniteLossStopsWithItsStep) {
  EXPECT_THAT(
      message_of<DeviceError>([&] { run(diverging(config("run"))); }),
      ContainsRegex("^step ([0-9]+): loss .*runtime.detect_nan = \"loss\"; steps 1 to [0-9]+ ran "
                    "again from the initial weights with the same bits$"));
}

TEST_F(Trainer, TooManyRowsForARankStopWithTheKeyThatGivesRoom) {
  RunConfig c = config("run");
  c.model.experts = 4;
  c.model.experts_per_token = 2;
  c.model.expert_ffn = 8;
  c.parallel.expert = c.parallel.ranks;
  c.moe.capacity = 0.5;
  c.moe.on_overflow = "error";
  EXPECT_THAT(message_of<DeviceError>([&] { run(c); }),
              ContainsRegex("^step 1: loss .*nan.* room for moe.capacity = 0.5 of the rows"));
  c.moe.on_overflow = "drop";
  EXPECT_EQ(run(c).last_step, 12);
}

TEST_F(Trainer, NonFiniteLossStopsWithItsFirstBadTensorWhenAsked) {
  RunConfig c = diverging(config("run"));
  c.runtime.detect_nan = "tensors";
  EXPECT_THAT(
      message_of<DeviceError>([&] { run(c); }),
      ContainsRegex("^step [0-9]+: loss .*runtime.detect_nan = \"tensors\"; run again: rank "
                    "[01], stream compute, task [0-9]+ \\(.* mb=0.*\\): wrote NaN or "
                    "infinity to element [0-9]+ of buffer m0\\."));
}

TEST_F(Trainer, NonFiniteLossesAreCountedWhenNobodyStops) {
  RunConfig c = diverging(config("run"));
  c.runtime.detect_nan = "off";
  EXPECT_EQ(run(c).last_step, 12);
  EXPECT_GT(read_metrics(path("run/metrics.jsonl")).steps.back().skipped_steps, 0);
}

}  // namespace
}  // namespace braid
