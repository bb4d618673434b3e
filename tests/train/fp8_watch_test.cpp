#include "train/fp8_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "base/errors.h"
#include "base/expect_error.h"
#include "support/whole_runs.h"

namespace braid {
namespace {

using testing::HasSubstr;

Tally losses(const std::string& site, const std::string& factor, float largest, int64_t flushed,
             int64_t elems) {
  return {.place = {.kind = TallyKind::kFp8Losses, .site = site, .factor = factor},
          .values = {std::bit_cast<int32_t>(largest), flushed, flushed / 2, elems}};
}

TEST(Fp8Records, AreMaximaAndSharesOverRanks) {
  const std::vector<Fp8Record> records =
      fp8_records(7, {losses("a", "x", 1.5, 10, 100), losses("b", "x", 2, 0, 100),
                      losses("a", "x", 0.5, 30, 300), losses("a", "w", 8, 1, 4)});
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].site, "a");
  EXPECT_EQ(records[0].factor, "x");
  EXPECT_EQ(records[0].step, 7);
  EXPECT_EQ(records[0].amax, 1.5);
  EXPECT_EQ(records[0].flushed, 0.1);
  EXPECT_EQ(records[0].saturated, 0.05);
  EXPECT_EQ(records[1].site, "b");
  EXPECT_EQ(records[2].factor, "w");
  EXPECT_EQ(records[2].flushed, 0.25);
}

TEST(Fp8Records, AMagnitudeThatIsNotFiniteIsAboveAllOthers) {
  const auto records = fp8_records(
      1,
      {losses("a", "x", NAN, 0, 1), losses("a", "x", INFINITY, 0, 1), losses("a", "x", 3, 0, 1)});
  EXPECT_TRUE(std::isnan(records[0].amax));
}

TEST(Fp8Records, AreThoseOfPlacesWhereSomethingWasRounded) {
  const Tally rows{.place = {.kind = TallyKind::kExpertRows, .site = "a"}, .values = {1, 2, 3, 4}};
  EXPECT_TRUE(fp8_records(1, {rows, losses("a", "x", 0, 0, 0)}).empty());
}

TEST(Fp8Records, RefuseOtherNumbers) {
  Tally damaged = losses("a", "x", 1, 0, 1);
  damaged.values.pop_back();
  EXPECT_EQ(message_of<DataError>([&] { fp8_records(1, {damaged}); }),
            "what FP8 lost at a has 3 numbers");
}

class Fp8WatchRun : public WholeRuns {
 protected:
  RunConfig fp8_config(const std::string& run) const {
    RunConfig config = WholeRuns::config(run);
    config.model.width = 128;
    config.model.ffn = 128;
    config.train.sequence = 64;
    config.train.steps = 4;
    config.train.fp8 = "block";
    config.eval.interval = 0;
    config.checkpoint.interval = 0;
    config.logging.trace_steps = {2};
    config.parallel.pipeline = 2;
    return config;
  }
};

TEST_F(Fp8WatchRun, RecordsEveryIntervalthStepOfAllRanksAndChangesNoBit) {
  train_in(fp8_config("plain"));
  EXPECT_TRUE(metrics("plain").fp8.empty());
  RunConfig config = fp8_config("watched");
  config.train.fp8_watch = 2;
  train_in(config);
  EXPECT_EQ(records_of(metrics("watched")), records_of(metrics("plain")));
  const std::vector<Fp8Record> fp8 = metrics("watched").fp8;
  EXPECT_EQ(fp8.size(), 2u * 2 * 4 * 3);  // steps, layers, products, factors
  std::set<std::string> layers;
  for (const Fp8Record& record : fp8) {
    layers.insert(record.site.substr(0, 8));
    EXPECT_EQ(record.step % 2, 0);
    EXPECT_GT(record.amax, 0);
    EXPECT_LT(record.flushed, 0.5);
    EXPECT_EQ(record.saturated, 0);
  }
  EXPECT_EQ(layers, (std::set<std::string>{"layers.0", "layers.1"}));  // of both pipeline ranks
  EXPECT_THAT(read("watched/report.html"), HasSubstr("fp8_watch\":{\"columns"));
  EXPECT_THAT(read("plain/report.html"), testing::Not(HasSubstr("fp8_watch\":{\"columns")));
}

// It may begin where a run resumes, or end there.
TEST_F(Fp8WatchRun, MayChangeWhereARunResumes) {
  train_in(fp8_config("whole"));
  RunConfig config = fp8_config("parts");
  config.train.fp8_watch = 1;
  train_in(config, {.stop_after_step = 2});
  config.train.fp8_watch = 0;
  train_in(config, {.stop_after_step = 3});
  config.train.fp8_watch = 4;
  train_in(config);
  EXPECT_EQ(records_of(metrics("parts")), records_of(metrics("whole")));
  expect_same_files("parts", "whole", 4, 2);
  std::set<int64_t> steps;
  for (const Fp8Record& record : metrics("parts").fp8) {
    steps.insert(record.step);
  }
  EXPECT_EQ(steps, (std::set<int64_t>{1, 2, 4}));
}

}  // namespace
}  // namespace braid
