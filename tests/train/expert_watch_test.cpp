#include "train/expert_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/errors.h"
#include "base/expect_error.h"
#include "support/whole_runs.h"

namespace braid {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Tally rows(const std::string& layer, std::vector<int64_t> values) {
  return {.place = {.kind = TallyKind::kExpertRows, .site = layer + ".moe.sort"},
          .values = std::move(values)};
}

TEST(ExpertRecords, AreSumsOverRanksInTheOrderOfLayers) {
  const StepTallies tallies{
      .tallies = {rows("layers.10", {1, 3}),
                  rows("layers.2", {4, 0}),
                  rows("layers.10", {1, 3}),
                  {.place = {.kind = TallyKind::kFp8Losses, .site = "layers.0.fc1"}}},
      .losses = {{"layers.10.moe.losses", 0.01, 0.02},
                 {"layers.10.moe.losses", 0.02, 0.02},
                 {"layers.10.moe.sequence_losses", 0.05, 0.0}}};
  const auto records =
      expert_records(tallies, {.step = 7,
                               .coefficients = {.balance = 0.02, .sequence_balance = 0.04},
                               .with_counts = true});
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].layer, "layers.2");
  EXPECT_EQ(records[0].max_violation, 1);
  EXPECT_EQ(records[0].dead, 1);
  EXPECT_EQ(records[1].layer, "layers.10");
  EXPECT_EQ(records[1].step, 7);
  EXPECT_THAT(records[1].counts, ElementsAre(2, 6));
  EXPECT_EQ(records[1].max_violation, 0.5);
  EXPECT_DOUBLE_EQ(records[1].balance_loss, 1.5);
  EXPECT_DOUBLE_EQ(records[1].sequence_balance_loss, 1.25);
  EXPECT_TRUE(std::isnan(records[1].z_loss));  // its coefficient is 0
  EXPECT_EQ(worst_load(records), 2);
  EXPECT_TRUE(expert_records(tallies, {.step = 7})[0].counts.empty());
  EXPECT_EQ(worst_load({}), 0);
}

TEST(ExpertRecords, RefuseRanksThatDisagree) {
  EXPECT_EQ(message_of<DataError>([] {
              expert_records({.tallies = {rows("layers.1", {1, 3}), rows("layers.1", {1})}}, {});
            }),
            "ranks counted 2 and 1 experts at layers.1.moe.sort");
}

Tally room(const std::string& layer, std::vector<int64_t> values) {
  return {.place = {.kind = TallyKind::kRowRoom, .site = layer + ".moe.dispatch"},
          .values = std::move(values)};
}

TEST(ExpertRecords, HaveTheRoomOfTheRankToWhichMostRowsCame) {
  const auto records = expert_records(
      {.tallies = {rows("layers.1", {40, 24}), room("layers.1", {40, 4, 36, 30, 16}),
                   room("layers.1", {24, 0, 12, 30, 16}), room("layers.0", {10, 0, 3, 6, 4})}},
      {.step = 7});
  ASSERT_EQ(records.size(), 2u);
  const RoomRecord& found = records[1].room.value();
  EXPECT_EQ(found.dropped_rows, 4);
  EXPECT_EQ(found.dropped_share, 4.0 / 64);
  EXPECT_EQ(found.room_used, 1.2);
  EXPECT_EQ(found.sufficient_capacity, 2.25);
  EXPECT_EQ(records[0].room->room_used, 0.5);
  const std::optional<WorstRoom> worst = worst_room(records);
  EXPECT_EQ(worst->used, 1.2);
  EXPECT_EQ(worst->dropped_share, 4.0 / 64);
  EXPECT_FALSE(worst_room({}).has_value());
  EXPECT_FALSE(expert_records({.tallies = {rows("layers.1", {1})}}, {})[0].room.has_value());
  EXPECT_EQ(message_of<DataError>([] {
              expert_records({.tallies = {room("layers.1", {1, 2})}}, {});
            }),
            "a rank counted 2 numbers of its room at layers.1.moe.dispatch, not 5");
}

Tally capacity(const std::string& layer, std::vector<int64_t> values) {
  return {.place = {.kind = TallyKind::kRowRoom, .site = layer + ".moe.drop"},
          .values = std::move(values)};
}

TEST(ExpertRecords, HaveTheCapacityOfExperts) {
  const auto records = expert_records(
      {.tallies = {rows("layers.1", {40, 24}), capacity("layers.1", {48, 8, 18, 10, 12}),
                   capacity("layers.1", {16, 0, 9, 10, 12})}},
      {.step = 7});
  ASSERT_EQ(records.size(), 1u);
  const RoomRecord& found = records[0].room.value();
  EXPECT_TRUE(found.of_experts);
  EXPECT_EQ(found.dropped_rows, 8);
  EXPECT_EQ(found.dropped_share, 8.0 / 64);
  EXPECT_EQ(found.room_used, 1.8);
  EXPECT_EQ(found.sufficient_capacity, 1.5);
  EXPECT_FALSE(
      expert_records({.tallies = {room("layers.1", {1, 0, 1, 1, 1})}}, {})[0].room->of_experts);
}

class ExpertWatchRun : public WholeRuns {
 protected:
  RunConfig experts_config(const std::string& run) const {
    RunConfig config = WholeRuns::config(run);
    config.model.pattern = "attention+moe*2";
    config.model.layers = 2;
    config.model.experts = 4;
    config.model.experts_per_token = 2;
    config.model.expert_ffn = 16;
    config.train.steps = 5;
    config.eval.interval = 0;
    config.checkpoint.interval = 0;
    config.parallel.pipeline = 2;
    config.moe.watch = 2;
    config.moe.watch_counts = 4;
    return config;
  }
};

TEST_F(ExpertWatchRun, RecordsTheLoadsOfAllLayersAndChangesNoBit) {
  RunConfig config = experts_config("plain");
  config.moe.watch = 0;
  train_in(config);
  EXPECT_TRUE(metrics("plain").experts.empty());
  train_in(experts_config("watched"));
  EXPECT_EQ(records_of(metrics("watched")), records_of(metrics("plain")));
  std::set<std::pair<int64_t, std::string>> found;
  std::set<int64_t> with_counts;
  for (const ExpertRecord& record : metrics("watched").experts) {
    found.insert({record.step, record.layer});
    EXPECT_GE(record.max_violation, 0);
    EXPECT_GT(record.balance_loss, 0.5);
    EXPECT_TRUE(std::isnan(record.z_loss));
    if (!record.counts.empty()) {
      with_counts.insert(record.step);
    }
  }
  std::set<std::pair<int64_t, std::string>> expected;
  for (const int64_t step : {1, 2, 4, 5}) {
    expected.insert({step, "layers.0"});
    expected.insert({step, "layers.1"});
  }
  EXPECT_EQ(found, expected);
  EXPECT_THAT(with_counts, ElementsAre(1, 4, 5));
  EXPECT_THAT(read("watched/report.html"), HasSubstr("experts\":{\"steps\":[1,2,4,5]"));
  EXPECT_THAT(read("plain/report.html"), Not(HasSubstr("experts\":{\"steps")));
}

TEST_F(ExpertWatchRun, RecordsWhatExpertsDrop) {
  RunConfig config = experts_config("dropping");
  config.moe.expert_capacity = 0.5;
  train_in(config);
  config = experts_config("unwatched");
  config.moe.expert_capacity = 0.5;
  config.moe.watch = 0;
  train_in(config);
  EXPECT_EQ(records_of(metrics("dropping")), records_of(metrics("unwatched")));
  train_in(experts_config("plain"));
  EXPECT_NE(records_of(metrics("dropping")), records_of(metrics("plain")));
  EXPECT_FALSE(metrics("dropping").experts.empty());
  for (const ExpertRecord& record : metrics("dropping").experts) {
    ASSERT_TRUE(record.room.has_value());
    EXPECT_TRUE(record.room->of_experts);
    EXPECT_GE(record.room->dropped_share, 0.5);
    EXPECT_LT(record.room->dropped_share, 1);
    EXPECT_GE(record.room->sufficient_capacity, 1);
  }
  EXPECT_THAT(read("dropping/report.html"), HasSubstr("moe.expert_capacity = "));
  EXPECT_FALSE(metrics("plain").experts.back().room.has_value());
}

}  // namespace
}  // namespace braid
