#include "parallel/schedule_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string table_of(const ScheduleOptions& options, const JobCosts& costs = {},
                     int max_width = 0) {
  return schedule_table(time_schedules(options, make_schedules(options), costs),
                        {.max_width = max_width});
}

std::vector<std::string> lines_of(const std::string& table) {
  std::vector<std::string> lines = split_text(table, '\n');
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  return lines;
}

TEST(ScheduleTable, ShowsJobsAndIdleTime) {
  EXPECT_EQ(table_of({.num_ranks = 2, .num_microbatches = 2}),
            "rank 0  F0 F1 .  .  B0 -  .  B1 -\n"
            "rank 1  .  F0 B0 -  F1 B1 -  .  .\n");
}

TEST(ScheduleTable, NamesVirtualStages) {
  EXPECT_EQ(
      table_of(
          {.kind = ScheduleKind::kZbV, .num_ranks = 2, .virtual_stages = 2, .num_microbatches = 1}),
      "rank 0  F0.0 .    .    F0.1 D0.1 W0.1 .    D0.0 W0.0\n"
      "rank 1  .    F0.0 F0.1 .    .    D0.1 D0.0 W0.1 W0.0\n");
}

TEST(ScheduleTable, AColumnIsTheLargestUnit) {
  EXPECT_EQ(table_of({.num_microbatches = 2}, {.forward = 100, .dgrad = 150, .wgrad = 50}),
            "rank 0  F0 B0 -  F1 B1 -\n");
}

TEST(ScheduleTable, LeavesOutColumnsInTheMiddle) {
  const std::string table = table_of({.num_ranks = 4, .num_microbatches = 100}, {}, 60);
  const std::vector<std::string> lines = lines_of(table);
  ASSERT_THAT(lines, SizeIs(4));
  for (const std::string& line : lines) {
    EXPECT_LE(line.size(), 60u);
    EXPECT_THAT(line, HasSubstr(" .. "));
  }
  EXPECT_THAT(lines[0], StartsWith("rank 0  F0  F1  F2  F3  .   .   .. "));
  EXPECT_TRUE(lines[0].ends_with(" B98 -   .   B99 -")) << lines[0];
}

TEST(ScheduleTable, TakesTimesAndNumbersOfAnySize) {
  const ScheduleOptions options{.kind = ScheduleKind::kInterleaved,
                                .num_ranks = 64,
                                .virtual_stages = 4,
                                .num_microbatches = 512};
  const std::string table =
      table_of(options, {.forward = 123'457, .dgrad = 130'003, .wgrad = 99'991}, 100);
  EXPECT_THAT(lines_of(table), SizeIs(64));
  EXPECT_LT(table.size(), 64u * 101);
  EXPECT_EQ(lines_of(table_of({.num_microbatches = 1000}, {}, 1)).at(0).substr(0, 20),
            "rank 0  F0   B0   - ");
  EXPECT_EQ(table_of({.num_microbatches = 2}, {.forward = 0, .dgrad = 0, .wgrad = 0}), "rank 0\n");
}

TEST(ScheduleTable, NothingIsNothing) {
  EXPECT_EQ(schedule_table({}), "");
  EXPECT_EQ(schedule_table({{}, {}}), "rank 0\nrank 1\n");
}

}  // namespace
}  // namespace braid
