#include "report/schedule_svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string svg_of(const ScheduleOptions& options, const JobCosts& costs = {}) {
  return schedule_svg(time_schedules(options, make_schedules(options), costs));
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

/// Every element is closed, by its own tag or at once, in the right order.
bool is_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    if (end == std::string::npos) {
      return false;
    }
    const std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) {
        return false;
      }
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty();
}

TEST(ScheduleSvg, HasABoxPerJob) {
  const std::string svg = svg_of({.num_ranks = 3, .num_microbatches = 4});
  EXPECT_THAT(svg, AllOf(StartsWith("<svg "), EndsWith("</svg>")));
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(count_of(svg, "<title>"), 3u * 4 * 2);
  EXPECT_EQ(count_of(svg, "class=\"n\""), 3u * 4 * 2);  // all have room for their number
  EXPECT_EQ(count_of(svg, "class=\"track\""), 3u);
  EXPECT_THAT(svg, HasSubstr("<title>forward of microbatch 3: 9 to 10</title>"));
  EXPECT_THAT(svg, HasSubstr(">rank 2</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("virtual stage")));
}

TEST(ScheduleSvg, LegendNamesWhatOccurs) {
  const std::string plain = svg_of({.num_ranks = 2, .num_microbatches = 2});
  EXPECT_THAT(plain, AllOf(HasSubstr(">backward (dgrad and wgrad)</text>"),
                           Not(HasSubstr(">wgrad</text>"))));
  const std::string split =
      svg_of({.kind = ScheduleKind::kZbH1, .num_ranks = 2, .num_microbatches = 2});
  EXPECT_THAT(split, AllOf(HasSubstr(">dgrad</text>"), HasSubstr(">wgrad</text>"),
                           Not(HasSubstr(">backward"))));
}

TEST(ScheduleSvg, LaterVirtualStagesArePaler) {
  const std::string svg = svg_of({.kind = ScheduleKind::kInterleaved,
                                  .num_ranks = 2,
                                  .virtual_stages = 3,
                                  .num_microbatches = 2});
  EXPECT_EQ(count_of(svg, "fill-opacity=\"0.80\""), 2u * 2 * 2);
  EXPECT_EQ(count_of(svg, "fill-opacity=\"0.60\""), 2u * 2 * 2);
  EXPECT_THAT(svg, AllOf(HasSubstr("virtual stage 2"), HasSubstr("later virtual stages")));
}

TEST(ScheduleSvg, LargeSchedulesStaySmall) {
  const std::string svg = svg_of({.kind = ScheduleKind::kInterleaved,
                                  .num_ranks = 128,
                                  .virtual_stages = 4,
                                  .num_microbatches = 256},
                                 {.forward = 1'234'567, .dgrad = 1'300'003, .wgrad = 999'999});
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_LT(svg.size(), 500'000u);
  EXPECT_THAT(svg, AllOf(HasSubstr(">rank 0<"), HasSubstr(">rank 15<"), Not(HasSubstr(">rank 16<")),
                         HasSubstr(">... 96 more ranks<"), HasSubstr(">rank 112<"),
                         HasSubstr(">rank 127<"), HasSubstr("% of the time left out")));
  EXPECT_THAT(svg, AllOf(HasSubstr("forward of microbatch 0,"), HasSubstr("microbatch 255,")));
}

TEST(ScheduleSvg, ManyShortJobsBesideLongOnesStaySmall) {
  const std::string svg =
      svg_of({.kind = ScheduleKind::kZbH1, .num_ranks = 8, .num_microbatches = 2000},
             {.forward = 1'000'000, .dgrad = 1, .wgrad = 1});
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_LT(svg.size(), 500'000u);
}

TEST(ScheduleSvg, TakesAnything) {
  EXPECT_TRUE(is_well_formed(schedule_svg({})));
  EXPECT_THAT(schedule_svg({{}, {}}), AllOf(HasSubstr(">rank 1<"), HasSubstr(">no jobs<")));
  EXPECT_TRUE(
      is_well_formed(svg_of({.num_microbatches = 3}, {.forward = 0, .dgrad = 0, .wgrad = 0})));
}

}  // namespace
}  // namespace braid
