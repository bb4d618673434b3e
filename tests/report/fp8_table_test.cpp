#include "report/fp8_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "report/comparison.h"
#include "report/report_html.h"

namespace braid {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Fp8Record> two_steps() {
  return {{10, "layers.0.attention.qkv", "x", 2, 0.25, 0},
          {10, "layers.1.attention.qkv", "x", 9, 0.0, 0.125},
          {10, "layers.0.attention.qkv", "dy", 1e-5, 0.01, 0},
          {10, "layers.0.ffn.fc1", "w", 1, 0, 0},
          {20, "layers.0.attention.qkv", "x", 3, 0.02, 0},
          {20, "layers.1.attention.qkv", "x", 4, 0.04, 0},
          {20, "layers.0.ffn.fc1", "w", 1, 0, 0}};
}

TEST(Fp8Table, HasMeanAndWorstLayerOfTheLastStepAndOfTheRun) {
  const ReportTable table = fp8_table(two_steps());
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_THAT(table.rows[0], ElementsAre("attention.qkv", "x", "4", "9", "3%", "4%", "layers.1",
                                         "25%", "layers.0", "10", "12.5%"));
  EXPECT_THAT(
      table.rows[1],  // not in the last step
      ElementsAre("attention.qkv", "dy", "", "1e-05", "", "", "", "1%", "layers.0", "10", "0%"));
  EXPECT_THAT(table.rows[2], ElementsAre("ffn.fc1", "w", "1", "1", "0%", "0%", "layers.0", "0%",
                                         "layers.0", "10", "0%"));
  for (const auto& row : table.rows) {
    EXPECT_EQ(row.size(), table.columns.size());
  }
}

TEST(Fp8Table, IsAsLongForManyLayersAsForOne) {
  std::vector<Fp8Record> records;
  for (int layer = 0; layer < 80; ++layer) {
    records.push_back({1, fmt::format("layers.{}.ffn.fc1", layer), "x", 1, layer / 100.0, 0});
  }
  const ReportTable table = fp8_table(records);
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_EQ(table.rows[0][6], "layers.79");
  EXPECT_TRUE(fp8_table({}).rows.empty());
}

TEST(Fp8Table, NaNIsAboveAllMagnitudes) {
  const ReportTable table = fp8_table({{1, "layers.0.a", "x", NAN, 0, 0},
                                       {1, "layers.1.a", "x", 5, 0, 0},
                                       {2, "layers.0.a", "x", 5, 0, 0}});
  EXPECT_EQ(table.rows[0][2], "5");
  EXPECT_EQ(table.rows[0][3], "nan");
}

TEST(Fp8Table, IsInTheReportIfThereAreRecords) {
  ReportInput input;
  input.title = "narrow";
  EXPECT_EQ(describe_tables(run_report(input)), "");
  input.fp8 = two_steps();
  const std::string text = describe_tables(run_report(input));
  EXPECT_THAT(text,
              HasSubstr("fp8 of narrow\nplace          factor  amax  of run  flushed  worst"));
  EXPECT_THAT(text, HasSubstr("\nattention.qkv       x     4       9       3%     4%  layers.1"));
}

}  // namespace
}  // namespace braid
