#include "train/run_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/file.h"
#include "base/temp_folder.h"

namespace braid {
namespace {

using testing::HasSubstr;

class RunLogTest : public testing::Test {
 protected:
  RunLogOptions options() {
    return {.folder = folder_.path(),
            .tensorboard = false,
            .interval = 4,
            .num_steps = 10,
            .global_batch = 8,
            .print = [this](std::string_view text) { printed_ += text; },
            .now_ns = [this] { return now_ns_; },
            .columns = [] { return 100; }};
  }

  StepRecord record(int64_t step) {
    now_ns_ += 1'000'000'000;
    return {.step = step,
            .loss = 5,
            .step_ms = 900,
            .tokens_per_s = 1000,
            .consumed_samples = 8 * step};
  }

  std::string metrics_text() const { return read_text_file(folder_ / "metrics.jsonl", 1 << 20); }
  std::string take_printed() { return std::exchange(printed_, {}); }

  TempFolder folder_;
  std::string printed_;
  int64_t now_ns_ = 1'700'000'000'000'000'000;
};

TEST_F(RunLogTest, WritesALinePerStepAndEvaluationAtOnce) {
  RunLog log(options());
  log.evaluation({0, 9});
  const StepRecord first = record(1);
  log.step(first);
  EXPECT_EQ(metrics_text(), metrics_line(EvalRecord{0, 9}) + metrics_line(first));
  EXPECT_EQ(log.metrics().steps.size(), 1u);
  EXPECT_EQ(log.metrics().evaluations.size(), 1u);
}

TEST_F(RunLogTest, WritesLoadsOfExpertsAndShowsTheWorst) {
  RunLog log(options());
  const ExpertRecord loads{.step = 1, .layer = "layers.0", .max_violation = 0.5};
  log.experts({loads});
  log.step(record(1));
  EXPECT_THAT(metrics_text(), testing::StartsWith(metrics_line(loads)));
  EXPECT_EQ(log.metrics().experts.size(), 1u);
  EXPECT_THAT(take_printed(), HasSubstr("| busiest expert: 1.50x |"));
  log.experts({});
  EXPECT_EQ(log.metrics().experts.size(), 1u);
}

TEST_F(RunLogTest, ADamagedLineIsNamedAndDoesNotStopARunThatResumes) {
  const std::string first = metrics_line(record(1));
  const std::string second = metrics_line(record(2));
  write_test_file(folder_ / "metrics.jsonl", first + first.substr(0, 30) + second);
  RunLogOptions resumed = options();
  resumed.first_step = 3;
  RunLog log(resumed);
  log.sync();
  EXPECT_EQ(metrics_text(), first);
  EXPECT_EQ(log.metrics().steps.size(), 1u);
  EXPECT_EQ(take_printed(), "");  // the last line, as a killed process leaves it
  write_test_file(folder_ / "metrics.jsonl", first + "rubbish\n" + second);
  const RunLog again(resumed);
  EXPECT_EQ(metrics_text(), first + second);
  const std::string printed = take_printed();
  EXPECT_THAT(printed,
              testing::StartsWith("note     '" + (folder_ / "metrics.jsonl") + "' line 2 is not"));
  EXPECT_THAT(printed, testing::EndsWith("; this line is left out\n"));
}

TEST_F(RunLogTest, LogsTheFirstTheLastAndEveryIntervalthStep) {
  RunLog log(options());
  std::vector<int64_t> logged;
  for (int64_t step = 1; step <= 10; ++step) {
    log.step(record(step));
    if (!take_printed().empty()) {
      logged.push_back(step);
    }
  }
  EXPECT_EQ(logged, (std::vector<int64_t>{1, 4, 8, 10}));
}

TEST_F(RunLogTest, PrintsWholeLinesAndNothingElseWithoutABar) {
  RunLog log(options());
  log.message("hello");
  log.step(record(1));
  log.step(record(2));
  log.evaluation({2, 4});
  log.finish();
  const std::string printed = take_printed();
  EXPECT_EQ(std::count(printed.begin(), printed.end(), '\n'), 3);
  EXPECT_EQ(printed.find_first_of("\r\x1b"), std::string::npos);
  EXPECT_THAT(printed, testing::StartsWith("hello\n ["));
  EXPECT_THAT(printed, testing::EndsWith("PPL: 5.459815E+01 |\n"));
}

TEST_F(RunLogTest, TheBarShowsLossesSpeedAndTimeLeft) {
  RunLogOptions with_bar = options();
  with_bar.progress_bar = true;
  RunLog log(with_bar);
  log.evaluation({0, 9.25});
  log.step(record(1));
  EXPECT_THAT(take_printed(),
              HasSubstr("1/10  loss 5.000  valid 9.250  1.00K tokens/s  ETA 8.10 s"));
  // A step takes a second by the clock: 100 ms more than what was measured inside of it.
  log.step(record(2));
  EXPECT_THAT(take_printed(), HasSubstr("ETA 8.00 s"));
  log.finish();
  log.finish();
  EXPECT_EQ(take_printed(), "\r\x1b[K");
}

TEST_F(RunLogTest, LinesComeAboveTheBar) {
  RunLogOptions with_bar = options();
  with_bar.progress_bar = true;
  RunLog log(with_bar);
  log.step(record(1));
  const std::string printed = take_printed();
  const std::string bar = printed.substr(printed.rfind('\r'));
  log.message("hello");
  EXPECT_EQ(take_printed(), "\r\x1b[Khello\n" + bar);
}

TEST_F(RunLogTest, AResumedRunContinuesItsFile) {
  std::string kept;
  {
    RunLog log(options());
    for (int64_t step = 1; step <= 6; ++step) {
      StepRecord one = record(step);
      one.skipped_steps = step >= 3 ? 1 : 0;
      log.step(one);
      kept += step <= 4 ? metrics_line(one) : "";
    }
  }
  RunLogOptions resumed = options();
  resumed.first_step = 5;
  RunLog log(resumed);
  EXPECT_EQ(metrics_text(), kept);
  EXPECT_EQ(log.metrics().steps.size(), 4u);
  take_printed();
  StepRecord next = record(5);
  next.skipped_steps = 1;  // as before: none since step 3
  log.step(next);
  EXPECT_EQ(metrics_text(), kept + metrics_line(next));
  EXPECT_THAT(take_printed(), HasSubstr("skipped iterations:   0 |"));
}

TEST_F(RunLogTest, WritesTensorBoardEventsUnlessToldNotTo) {
  RunLogOptions with_events = options();
  with_events.tensorboard = true;
  RunLog log(with_events);
  log.step(record(1));
  log.evaluation({1, 4});
  EXPECT_EQ(folder_.num_entries(), 2);
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    if (entry.path().filename() == "metrics.jsonl") {
      continue;
    }
    EXPECT_THAT(entry.path().filename().string(),
                testing::StartsWith("events.out.tfevents.1700000000."));
    const std::string events = read_text_file(entry.path(), 1 << 20);
    for (const char* tag :
         {"loss", "learning-rate", "grad-norm", "tokens-per-second", "valid-loss"}) {
      EXPECT_THAT(events, HasSubstr(std::string("\n") + static_cast<char>(std::strlen(tag)) + tag));
    }
  }
}

TEST_F(RunLogTest, AMissingFolderIsAnErrorThatNamesIt) {
  RunLogOptions missing = options();
  missing.folder = folder_ / "missing";
  EXPECT_THAT(message_of<DataError>([&] { RunLog log(missing); }), HasSubstr(missing.folder));
}

TEST_F(RunLogTest, AReadOnlyFolderIsAnErrorThatNamesIt) {
  RunLogOptions read_only = options();
  read_only.folder = "/proc";  // where root may not write either
  EXPECT_THAT(message_of<DataError>([&] { RunLog log(read_only); }),
              HasSubstr("/proc/metrics.jsonl"));
}

TEST_F(RunLogTest, AFullDiskIsAnErrorAndTheTornLineIsDroppedLater) {
  {
    RunLog log(options());
    log.step(record(1));
    const FileSizeLimit limit(static_cast<int64_t>(metrics_text().size()) + 10);
    EXPECT_THAT(message_of<DataError>([&] { log.step(record(2)); }),
                HasSubstr(folder_ / "metrics.jsonl"));
  }
  RunLogOptions resumed = options();
  resumed.first_step = 2;
  const RunLog log(resumed);
  EXPECT_EQ(log.metrics().steps.size(), 1u);
}

}  // namespace
}  // namespace braid
