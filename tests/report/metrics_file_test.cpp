#include "report/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

StepRecord step_record(int64_t step) {
  return {.step = step,
          .loss = 1.0 / 3.0,
          .learning_rate = 1e-4 / 7.0,
          .grad_norm = 0.1,
          .step_ms = 12.5,
          .tokens_per_s = 1e6 / 3.0,
          .tflops_per_s_per_rank = 0.25,
          .consumed_samples = int64_t{1} << 53,
          .consumed_tokens = (int64_t{1} << 62) + 1,
          .skipped_steps = 2,
          .nan_steps = 1};
}

std::string three_lines() {
  return metrics_line(EvalRecord{0, 9.5}) + metrics_line(step_record(1)) +
         metrics_line(step_record(2));
}

TEST(MetricsFile, LinesAreObjectsWithTheNamesOfTheMembers) {
  EXPECT_EQ(metrics_line(EvalRecord{7, 2.5}), "{\"step\":7,\"valid_loss\":2.5}\n");
  EXPECT_EQ(metrics_line(StepRecord{.step = 3, .loss = 0.5}),
            "{\"step\":3,\"loss\":0.5,\"learning_rate\":0.0,\"grad_norm\":0.0,\"step_ms\":0.0,"
            "\"tokens_per_s\":0.0,\"tflops_per_s_per_rank\":0.0,\"consumed_samples\":0,"
            "\"consumed_tokens\":0,\"skipped_steps\":0,\"nan_steps\":0}\n");
}

TEST(MetricsFile, LoadsOfExpertsComeBack) {
  const TempFolder folder;
  ExpertRecord record{.step = 3,
                      .layer = "layers.1",
                      .max_violation = 1.0 / 3.0,
                      .min_ratio = 0.5,
                      .std_ratio = 0.25,
                      .entropy = 0.75,
                      .dead = 1,
                      .balance_loss = 1.5,
                      .sequence_balance_loss = 1.75,
                      .z_loss = NAN};
  EXPECT_EQ(metrics_line(record),
            "{\"expert_layer\":\"layers.1\",\"step\":3,\"max_violation\":0.3333333333333333,"
            "\"min_ratio\":0.5,\"std_ratio\":0.25,\"entropy\":0.75,\"dead\":1,"
            "\"balance_loss\":1.5,\"sequence_balance_loss\":1.75,\"z_loss\":null}\n");
  std::string lines = three_lines() + metrics_line(record);
  record.counts = {7, int64_t{1} << 40, 0};
  lines += metrics_line(record) + "{\"expert_layer\":\"layers.2\",\"step\":3}\n{}\n";
  write_test_file(folder / "metrics.jsonl", lines);
  const Metrics metrics = read_metrics(folder / "metrics.jsonl");
  ASSERT_EQ(metrics.experts.size(), 2u);
  EXPECT_TRUE(metrics.experts[0].counts.empty());
  EXPECT_EQ(metrics.experts[1].counts, record.counts);
  EXPECT_EQ(metrics.experts[1].layer, "layers.1");
  EXPECT_EQ(metrics.experts[1].max_violation, 1.0 / 3.0);
  EXPECT_EQ(metrics.experts[1].dead, 1);
  EXPECT_TRUE(std::isnan(metrics.experts[1].z_loss));
  EXPECT_EQ(metrics.experts[1].sequence_balance_loss, 1.75);
  EXPECT_EQ(metrics.num_damaged_lines, 1);  // the last line may be incomplete
}

TEST(MetricsFile, OlderRecordsOfExpertsLackTheLossInsideSequences) {
  const TempFolder folder;
  std::string line = metrics_line(ExpertRecord{.step = 3, .layer = "layers.1", .z_loss = 2.5});
  const std::string member = "\"sequence_balance_loss\":0.0,";
  line.erase(line.find(member), member.size());
  write_test_file(folder / "metrics.jsonl", line);
  const Metrics metrics = read_metrics(folder / "metrics.jsonl");
  ASSERT_EQ(metrics.experts.size(), 1u);
  EXPECT_TRUE(std::isnan(metrics.experts[0].sequence_balance_loss));
  EXPECT_EQ(metrics.experts[0].z_loss, 2.5);
}

TEST(MetricsFile, LossesOfMultiTokenPredictionComeBack) {
  const TempFolder folder;
  const StepRecord record{.step = 3, .mtp_losses = {0.1, std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_THAT(metrics_line(record), HasSubstr(",\"mtp_losses\":[0.1,null]}"));
  write_test_file(folder / "metrics.jsonl",
                  metrics_line(record) + metrics_line(StepRecord{.step = 4}));
  const Metrics metrics = read_metrics(folder / "metrics.jsonl");
  ASSERT_EQ(metrics.steps.size(), 2u);
  ASSERT_EQ(metrics.steps[0].mtp_losses.size(), 2u);
  EXPECT_EQ(metrics.steps[0].mtp_losses[0], 0.1);
  EXPECT_TRUE(std::isnan(metrics.steps[0].mtp_losses[1]));
  EXPECT_TRUE(metrics.steps[1].mtp_losses.empty());
}

TEST(MetricsFile, TheLossOfTheLogSumExpComesBack) {
  const TempFolder folder;
  const StepRecord record{.step = 3, .z_loss = 12.5};
  const StepRecord bad{.step = 4, .z_loss = std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THAT(metrics_line(record), HasSubstr(",\"z_loss\":12.5}"));
  EXPECT_THAT(metrics_line(bad), HasSubstr(",\"z_loss\":null}"));
  write_test_file(folder / "metrics.jsonl",
                  metrics_line(record) + metrics_line(bad) + metrics_line(StepRecord{.step = 5}));
  const Metrics metrics = read_metrics(folder / "metrics.jsonl");
  ASSERT_EQ(metrics.steps.size(), 3u);
  EXPECT_EQ(metrics.steps[0].z_loss, 12.5);
  EXPECT_TRUE(std::isnan(metrics.steps[1].z_loss.value()));
  EXPECT_FALSE(metrics.steps[2].z_loss);
}

TEST(MetricsFile, FiguresOfPairsHaveTheNamesOfTrl) {
  const TempFolder folder;
  const PreferenceRecord pairs{.chosen_reward = 0.5,
                               .rejected_reward = -0.25,
                               .accuracy = 0.75,
                               .chosen_logp = -30,
                               .rejected_logp = -41.5};
  const StepRecord step{.step = 3, .preference = pairs};
  const EvalRecord evaluation{.step = 3, .loss = 0.5, .preference = pairs};
  const std::string members =
      ",\"rewards/chosen\":0.5,\"rewards/rejected\":-0.25,\"rewards/accuracies\":0.75,"
      "\"logps/chosen\":-30.0,\"logps/rejected\":-41.5,\"rewards/margins\":0.75}\n";
  EXPECT_THAT(metrics_line(step), HasSubstr(members));
  EXPECT_EQ(metrics_line(evaluation), "{\"step\":3,\"valid_loss\":0.5" + members);
  write_test_file(folder / "metrics.jsonl",
                  metrics_line(step) + metrics_line(evaluation) + metrics_line(StepRecord{}));
  const Metrics metrics = read_metrics(folder / "metrics.jsonl");
  EXPECT_EQ(metrics.steps.at(0).preference, pairs);
  EXPECT_EQ(metrics.evaluations.at(0).preference, pairs);
  EXPECT_FALSE(metrics.steps.at(1).preference);
}

TEST(MetricsFile, RoomForRowsAndRerunsComeBack) {
  const TempFolder folder;
  ExpertRecord record{.step = 3, .layer = "layers.1"};
  record.room = {
      .dropped_rows = 5, .dropped_share = 0.25, .room_used = 1.5, .sufficient_capacity = 2.25};
  EXPECT_THAT(metrics_line(record),
              HasSubstr(",\"dropped_rows\":5,\"dropped_share\":0.25,\"room_used\":1.5,"
                        "\"sufficient_capacity\":2.25}"));
  EXPECT_THAT(metrics_line(StepRecord{.reruns = 2}), HasSubstr(",\"nan_steps\":0,\"reruns\":2}"));
  write_test_file(folder / "metrics.jsonl", metrics_line(StepRecord{.step = 3, .reruns = 2}) +
                                                metrics_line(StepRecord{.step = 4}) +
                                                metrics_line(record));
  const Metrics metrics = read_metrics(folder / "metrics.jsonl");
  ASSERT_EQ(metrics.steps.size(), 2u);
  EXPECT_EQ(metrics.steps[0].reruns, 2);
  EXPECT_EQ(metrics.steps[1].reruns, 0);
  ASSERT_EQ(metrics.experts.size(), 1u);
  ASSERT_TRUE(metrics.experts[0].room.has_value());
  EXPECT_EQ(metrics.experts[0].room->dropped_rows, 5);
  EXPECT_EQ(metrics.experts[0].room->dropped_share, 0.25);
  EXPECT_EQ(metrics.experts[0].room->room_used, 1.5);
  EXPECT_EQ(metrics.experts[0].room->sufficient_capacity, 2.25);
}

TEST(MetricsFile, CapacityOfExpertsComesBack) {
  const TempFolder folder;
  ExpertRecord record{.step = 3, .layer = "layers.1"};
  record.room = {.dropped_rows = 5,
                 .dropped_share = 0.25,
                 .room_used = 1.5,
                 .sufficient_capacity = 2.25,
                 .of_experts = true};
  EXPECT_THAT(metrics_line(record),
              HasSubstr(",\"room_used\":1.5,\"sufficient_expert_capacity\":2.25}"));
  write_test_file(folder / "metrics.jsonl", metrics_line(record));
  const Metrics metrics = read_metrics(folder / "metrics.jsonl");
  ASSERT_TRUE(metrics.experts.at(0).room.has_value());
  EXPECT_TRUE(metrics.experts[0].room->of_experts);
  EXPECT_EQ(metrics.experts[0].room->sufficient_capacity, 2.25);
}

TEST(MetricsFile, WhatFp8LostComesBack) {
  const TempFolder folder;
  const Fp8Record record{.step = 3,
                         .site = "layers.0.ffn.fc1",
                         .factor = "dy",
                         .amax = INFINITY,
                         .flushed = 1.0 / 3.0,
                         .saturated = 0.125};
  EXPECT_EQ(metrics_line(record),
            "{\"fp8_site\":\"layers.0.ffn.fc1\",\"factor\":\"dy\",\"step\":3,\"amax\":null,"
            "\"flushed\":0.3333333333333333,\"saturated\":0.125}\n");
  write_test_file(folder / "metrics.jsonl", three_lines() + metrics_line(record));
  const Metrics metrics = read_metrics(folder / "metrics.jsonl");
  EXPECT_EQ(metrics.steps.size(), 2u);
  ASSERT_EQ(metrics.fp8.size(), 1u);
  EXPECT_EQ(metrics.fp8[0].step, 3);
  EXPECT_EQ(metrics.fp8[0].site, record.site);
  EXPECT_EQ(metrics.fp8[0].factor, record.factor);
  EXPECT_TRUE(std::isnan(metrics.fp8[0].amax));
  EXPECT_EQ(metrics.fp8[0].flushed, record.flushed);
  EXPECT_EQ(metrics.fp8[0].saturated, record.saturated);
  EXPECT_TRUE(keep_metrics_before(folder / "metrics.jsonl", 3).fp8.empty());
}

TEST(MetricsFile, NumbersComeBackBitForBit) {
  const TempFolder folder;
  write_test_file(folder / "metrics.jsonl", three_lines());
  const Metrics metrics = read_metrics(folder / "metrics.jsonl");
  ASSERT_EQ(metrics.steps.size(), 2u);
  const StepRecord& read = metrics.steps[0];
  const StepRecord written = step_record(1);
  EXPECT_EQ(read.step, written.step);
  EXPECT_EQ(read.loss, written.loss);
  EXPECT_EQ(read.learning_rate, written.learning_rate);
  EXPECT_EQ(read.grad_norm, written.grad_norm);
  EXPECT_EQ(read.step_ms, written.step_ms);
  EXPECT_EQ(read.tokens_per_s, written.tokens_per_s);
  EXPECT_EQ(read.tflops_per_s_per_rank, written.tflops_per_s_per_rank);
  EXPECT_EQ(read.consumed_samples, written.consumed_samples);
  EXPECT_EQ(read.consumed_tokens, written.consumed_tokens);
  EXPECT_EQ(read.skipped_steps, written.skipped_steps);
  EXPECT_EQ(read.nan_steps, written.nan_steps);
  ASSERT_EQ(metrics.evaluations.size(), 1u);
  EXPECT_EQ(metrics.evaluations[0].step, 0);
  EXPECT_EQ(metrics.evaluations[0].loss, 9.5);
}

TEST(MetricsFile, WhatJsonCannotSayIsNull) {
  const TempFolder folder;
  StepRecord record = step_record(1);
  record.loss = std::numeric_limits<double>::infinity();
  const std::string line = metrics_line(record);
  EXPECT_THAT(line, testing::HasSubstr("\"loss\":null"));
  write_test_file(folder / "m", line);
  EXPECT_TRUE(std::isnan(read_metrics(folder / "m").steps.at(0).loss));
}

TEST(MetricsFile, NoFileIsNoRecords) {
  const TempFolder folder;
  EXPECT_TRUE(read_metrics(folder / "none").steps.empty());
}

TEST(MetricsFile, ATornLastLineIsLeftOut) {
  const TempFolder folder;
  const std::string lines = three_lines();
  const size_t last_begin = lines.rfind('{');
  for (size_t size = last_begin; size < lines.size(); ++size) {
    write_test_file(folder / "m", lines.substr(0, size));
    EXPECT_EQ(read_metrics(folder / "m").steps.size(), 1u) << size;
  }
  // After a loss of power, a file system may show bytes that never arrived.
  write_test_file(folder / "m", lines.substr(0, last_begin) + std::string(20, '\0') + "\n");
  EXPECT_EQ(read_metrics(folder / "m").steps.size(), 1u);
}

TEST(MetricsFile, ADamagedLineInTheMiddleIsLeftOutAndNamed) {
  const TempFolder folder;
  const std::string path = folder / "m";
  for (const std::string& damaged :
       {std::string("rubbish"), std::string("[1]"), std::string("{}"), std::string("{\"step\":1}"),
        std::string("{\"step\":\"1\"}"), std::string("{\"step\":1e300,\"valid_loss\":1}"),
        std::string(100'000, '['), std::string(20, '\0')}) {
    write_test_file(path, metrics_line(step_record(1)) + damaged + "\n" +
                              metrics_line(step_record(2)) + metrics_line(EvalRecord{2, 8}));
    for (const bool resumes : {false, true}) {
      const Metrics metrics = resumes ? keep_metrics_before(path, 3) : read_metrics(path);
      EXPECT_EQ(metrics.steps.size(), 2u) << damaged;
      EXPECT_EQ(metrics.evaluations.size(), 1u);
      EXPECT_EQ(metrics.num_damaged_lines, 1);
      EXPECT_THAT(damage_note(metrics), testing::StartsWith("note     '" + path + "' line 2"));
      EXPECT_THAT(damage_note(metrics), testing::EndsWith("; this line is left out"));
      EXPECT_EQ(damage_note(metrics).find('\n'), std::string::npos);
    }
    EXPECT_EQ(damage_note(read_metrics(path)), "");
  }
}

TEST(MetricsFile, SeveralDamagedLinesHaveOneNote) {
  const TempFolder folder;
  std::string text = "[1]\n";
  for (int64_t more = 0; more < 3; ++more) {
    write_test_file(folder / "m", text + metrics_line(step_record(1)));
    EXPECT_EQ(
        damage_note(read_metrics(folder / "m")),
        fmt::format("note     '{}' line 1 is not a record of a step, an evaluation, a rerun, FP8 "
                    "or experts: \"[1]\"; "
                    "{} left out",
                    folder / "m",
                    std::vector<std::string>{"this line is", "it and another damaged line are",
                                             "it and 2 other damaged lines are"}
                        .at(static_cast<size_t>(more))));
    text += "more\n";
  }
}

TEST(MetricsFile, KeepsLinesOfEarlierStepsAsTheyAre) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  // An older or newer version may write numbers in another way, or more members.
  const std::string kept = "{\"step\": 0, \"valid_loss\": 9.50, \"new\": [1]}\n" +
                           metrics_line(step_record(1)) + metrics_line(EvalRecord{1, 9});
  write_test_file(path, kept + metrics_line(step_record(2)) + metrics_line(EvalRecord{2, 8}) +
                            metrics_line(step_record(3)).substr(0, 30));
  const Metrics metrics = keep_metrics_before(path, 2);
  EXPECT_EQ(read_text_file(path, 1 << 20), kept);
  EXPECT_EQ(metrics.steps.size(), 1u);
  EXPECT_EQ(metrics.evaluations.size(), 2u);
  EXPECT_EQ(folder.num_entries(), 1);
}

// Where a device failed must not be forgotten, whatever is measured again.
TEST(MetricsFile, KeepsAllRerunsOfARun) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const RerunRecord rerun{.step = 3, .from_step = 1, .message = "rank \"1\" (\xff) differs"};
  EXPECT_EQ(metrics_line(RerunRecord{6, 4, "why"}),
            "{\"step\":6,\"from_step\":4,\"rerun\":\"why\"}\n");
  const std::string kept = metrics_line(step_record(1)) + metrics_line(rerun);
  write_test_file(
      path, metrics_line(step_record(1)) + metrics_line(step_record(2)) + metrics_line(rerun));
  const Metrics metrics = keep_metrics_before(path, 2);
  EXPECT_EQ(read_text_file(path, 1 << 20), kept);
  EXPECT_EQ(metrics.steps.size(), 1u);
  ASSERT_EQ(metrics.reruns.size(), 1u);
  EXPECT_EQ(metrics.reruns[0].step, 3);
  EXPECT_EQ(metrics.reruns[0].from_step, 1);
  EXPECT_EQ(metrics.reruns[0].message, "rank \"1\" (\xEF\xBF\xBD) differs");
  EXPECT_TRUE(keep_metrics_before(path, 1).reruns.empty());
}

TEST(MetricsFile, ANewRunStartsEmpty) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  write_test_file(path, "what was here before need not be readable");
  EXPECT_TRUE(keep_metrics_before(path, 1).evaluations.empty());
  EXPECT_EQ(read_text_file(path, 1 << 20), "");
}

TEST(MetricsFile, ARunThatResumesWithoutAFileStartsOne) {
  const TempFolder folder;
  EXPECT_TRUE(keep_metrics_before(folder / "metrics.jsonl", 5).steps.empty());
  EXPECT_EQ(read_text_file(folder / "metrics.jsonl", 1 << 20), "");
}

TEST(MetricsFile, APathThatCannotBeExaminedIsAnError) {
  const std::string path = "/tmp/" + std::string(5000, 'x');
  EXPECT_THAT(message_of<DataError>([&] { read_metrics(path); }),
              testing::HasSubstr("File name too long"));
}

TEST(MetricsFile, AFolderThatIsNotThereIsAnError) {
  const TempFolder folder;
  EXPECT_THAT(message_of<DataError>([&] { keep_metrics_before(folder / "no/metrics.jsonl", 1); }),
              testing::HasSubstr(folder / "no/metrics.jsonl"));
}

}  // namespace
}  // namespace braid
