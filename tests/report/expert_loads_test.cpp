#include "report/expert_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "report/comparison.h"
#include "report/run_file.h"

namespace braid {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ExpertRecord record_of(int64_t step, const std::string& layer, const std::vector<int64_t>& rows) {
  ExpertRecord record = load_record(rows);
  record.step = step;
  record.layer = layer;
  record.balance_loss = 1.25;
  record.sequence_balance_loss = 1.375;
  record.z_loss = NAN;
  return record;
}

TEST(LoadRecord, ComparesExpertsWithTheirMean) {
  const ExpertRecord record = load_record({6, 2, 0, 0});
  EXPECT_EQ(record.max_violation, 2);
  EXPECT_EQ(record.min_ratio, 0);
  EXPECT_DOUBLE_EQ(record.std_ratio, std::sqrt((4 + 0 + 1 + 1) / 4.0));
  EXPECT_NEAR(record.entropy, -(0.75 * std::log(0.75) + 0.25 * std::log(0.25)) / std::log(4),
              1e-12);
  EXPECT_EQ(record.dead, 2);
  EXPECT_THAT(record.counts, ElementsAre(6, 2, 0, 0));
}

TEST(LoadRecord, OfEqualLoadsIsTheBest) {
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>(8, 3), std::vector<int64_t>{5}}) {
    const ExpertRecord record = load_record(rows);
    EXPECT_EQ(record.max_violation, 0);
    EXPECT_EQ(record.min_ratio, 1);
    EXPECT_EQ(record.std_ratio, 0);
    EXPECT_NEAR(record.entropy, 1, 1e-12);
    EXPECT_EQ(record.dead, 0);
  }
}

TEST(LoadRecord, OfNoRowsHasNoRatios) {
  const ExpertRecord record = load_record({0, 0});
  EXPECT_TRUE(std::isnan(record.max_violation));
  EXPECT_TRUE(std::isnan(record.entropy));
  EXPECT_EQ(record.dead, 2);
}

std::vector<ExpertRecord> two_steps() {
  std::vector<ExpertRecord> records{
      record_of(1, "layers.0", {9, 0, 0}), record_of(1, "layers.1", {1, 2, 0}),
      record_of(5, "layers.0", {4, 2, 0}), record_of(5, "layers.1", {0, 0, 3})};
  records[2].counts.clear();
  return records;
}

TEST(ExpertTable, HasTheWorstLayersFirst) {
  const ReportTable table = expert_table(two_steps());
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.columns.size(), table.rows[0].size());
  EXPECT_THAT(table.rows[0], ElementsAre("layers.1", "3", "3", "5", "0", "1.41", "0", "2", "0",
                                         "1.25", "1.38", ""));
  EXPECT_THAT(table.rows[1], ElementsAre("layers.0", "2", "3", "1", "0", "0.816", "0.579", "1", "2",
                                         "1.25", "1.38", ""));
  EXPECT_EQ(expert_table(two_steps(), 1).rows.size(), 1u);
  EXPECT_TRUE(expert_table({}).rows.empty());
}

// A damaged file may have them.
TEST(ExpertTable, NumbersThatAreNoneComeFirst) {
  std::vector<ExpertRecord> records{record_of(1, "layers.0", {1, 3}),
                                    record_of(1, "layers.1", {0, 0}),
                                    record_of(1, "layers.2", {1, 1})};
  EXPECT_EQ(expert_table(records).rows[0][0], "layers.1");
}

TEST(ExpertJson, HasCurvesAndTheLoadsOfTheLastStepWithCounts) {
  const nlohmann::ordered_json json = expert_json(two_steps());
  EXPECT_EQ(json.at("steps").dump(), "[1,5]");
  EXPECT_EQ(json.at("mean").dump(), "[1.5,1.5]");
  EXPECT_EQ(json.at("worst").dump(), "[2.0,2.0]");
  EXPECT_EQ(json.at("loads").dump(), R"({"step":5,"layers":["layers.1"],"rows":[[0.0,0.0,3.0]]})");
  std::vector<ExpertRecord> none = two_steps();
  for (ExpertRecord& record : none) {
    record.counts.clear();
  }
  EXPECT_TRUE(expert_json(none).at("loads").is_null());
  EXPECT_EQ(expert_json(none).at("table").at("rows").size(), 2u);
  EXPECT_TRUE(expert_json({}).is_null());
}

std::vector<ExpertRecord> with_room() {
  std::vector<ExpertRecord> records = two_steps();
  for (ExpertRecord& record : records) {
    record.room = {.room_used = 0.5, .sufficient_capacity = 1.25};
  }
  records[1].room = {
      .dropped_rows = 7, .dropped_share = 0.125, .room_used = 1.5, .sufficient_capacity = 1.50001};
  return records;
}

TEST(ExpertTable, HasTheRoomOfRanksWithDifferentExperts) {
  const ReportTable table = expert_table(with_room());
  EXPECT_EQ(table.columns.size(), table.rows[0].size());
  EXPECT_EQ(std::vector(table.rows[0].end() - 5, table.rows[0].end()),
            (std::vector<std::string>{"0%", "7", "50%", "1.25", "1.5"}));
}

TEST(RoomNote, SaysWhichCapacitySufficesAndWhichStepsRanAgain) {
  EXPECT_EQ(room_note(two_steps(), {}), "");
  EXPECT_EQ(room_note(with_room(), {{.step = 1}}),
            "moe.capacity = 1.501 has room for all rows of the recorded steps (layers.1 at step 1 "
            "needs it). 7 rows were dropped.");
  std::vector<ExpertRecord> records = with_room();
  records[1].room->of_experts = true;
  EXPECT_THAT(room_note(records, {}), testing::StartsWith("moe.expert_capacity = 1.501 has room"));
  records = with_room();
  records[1].room->dropped_rows = 0;
  EXPECT_THAT(room_note(records, {{.step = 3, .reruns = 2}}),
              testing::EndsWith("needs it). Step 3 ran again for more room."));
  EXPECT_THAT(expert_json(records, {{.step = 3, .reruns = 2}, {.step = 9, .reruns = 1}})
                  .at("room")
                  .get<std::string>(),
              testing::EndsWith(" Steps 3, 9 ran again for more room."));
  EXPECT_FALSE(expert_json(two_steps()).contains("room"));
}

TEST(ExpertTable, IsInTheReportIfThereAreRecords) {
  ReportInput input;
  input.title = "sparse";
  EXPECT_EQ(describe_tables(run_report(input)), "");
  input.experts = two_steps();
  const std::string text = describe_tables(run_report(input));
  EXPECT_THAT(text, HasSubstr("experts of sparse\nlayer     max/mean  of run  at step  min/mean"));
  EXPECT_THAT(text, HasSubstr("\nlayers.1         3       3        5         0"));
}

}  // namespace
}  // namespace braid
