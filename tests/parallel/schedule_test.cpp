#include "parallel/check_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = ScheduleKind;

constexpr Kind kAllKinds[] = {Kind::kGpipe,       Kind::kOneForwardOneBackward,
                              Kind::kInterleaved, Kind::kZbH1,
                              Kind::kZbV,         Kind::kDualpipeV};

std::string order_of(const ScheduleOptions& options, int rank) {
  return to_string(make_schedule(options, rank));
}

/// "F0 B0" for schedules of one virtual stage.
std::string short_order_of(const ScheduleOptions& options, int rank) {
  std::string text = order_of(options, rank);
  for (size_t dot = text.find(".0"); dot != std::string::npos; dot = text.find(".0")) {
    text.erase(dot, 2);
  }
  return text;
}

std::string refusal(const ScheduleOptions& options) {
  return message_of<ConfigError>([&] { check_schedule(options); });
}

ScheduleOptions interleaved(int ranks, int stages, int64_t group_size, int64_t microbatches) {
  return {.kind = Kind::kInterleaved,
          .num_ranks = ranks,
          .virtual_stages = stages,
          .num_microbatches = microbatches,
          .group_size = group_size};
}

int64_t leading_forwards(const Schedule& schedule) {
  return std::ranges::find_if(schedule,
                              [](const Job& job) { return job.kind != JobKind::kForward; }) -
         schedule.begin();
}

TEST(Schedule, SingleStageRunsEachMicrobatchToItsEnd) {
  EXPECT_EQ(to_string(single_stage_schedule(3)), "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0");
}

TEST(Schedule, NeedsAMicrobatch) {
  EXPECT_THROW(single_stage_schedule(0), InternalError);
}

TEST(Schedule, GpipeRunsAllForwardsFirst) {
  const ScheduleOptions options{.kind = Kind::kGpipe, .num_ranks = 2, .num_microbatches = 3};
  EXPECT_EQ(short_order_of(options, 0), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(make_schedule(options, 1), make_schedule(options, 0));
}

TEST(Schedule, OneForwardOneBackward) {
  const ScheduleOptions options{.num_ranks = 4, .num_microbatches = 6};
  EXPECT_EQ(short_order_of(options, 0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5");
  EXPECT_EQ(short_order_of(options, 1), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5");
  EXPECT_EQ(short_order_of(options, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5");
  EXPECT_EQ(short_order_of(options, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5");
}

TEST(Schedule, FewerMicrobatchesThanRanksAllWarmUp) {
  const ScheduleOptions options{.num_ranks = 4, .num_microbatches = 2};
  EXPECT_EQ(short_order_of(options, 0), "F0 F1 B0 B1");
  EXPECT_EQ(short_order_of(options, 3), "F0 B0 F1 B1");
}

// Golden orders: Megatron-LM's interleaved schedule.
TEST(Schedule, InterleavedOnTwoRanks) {
  EXPECT_EQ(order_of(interleaved(2, 2, 2, 4), 0),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  EXPECT_EQ(order_of(interleaved(2, 2, 2, 4), 1),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
}

TEST(Schedule, InterleavedOnFourRanks) {
  EXPECT_EQ(order_of(interleaved(4, 2, 4, 8), 2),
            "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 "
            "F2.1 B0.1 F3.1 B1.1 F4.0 B2.1 F5.0 B3.1 F6.0 B0.0 F7.0 B1.0 F4.1 B2.0 F5.1 B3.0 F6.1 "
            "B4.1 F7.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
  EXPECT_EQ(order_of(interleaved(4, 2, 4, 8), 3),
            "F0.0 F1.0 F2.0 F3.0 "
            "F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 F6.0 B2.0 F7.0 B3.0 F4.1 "
            "B4.1 F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0");
}

TEST(Schedule, InterleavedLastGroupMayBeShorter) {
  // Warm-up of all ten forwards: 2 ranks, groups of 3 and 2.
  const Schedule schedule = make_schedule(interleaved(2, 2, 3, 5), 0);
  std::string forwards;
  for (const Job& job : schedule) {
    if (job.kind == JobKind::kForward) {
      forwards += fmt::format("({},{})", job.microbatch, job.virtual_stage);
    }
  }
  EXPECT_EQ(forwards, "(0,0)(1,0)(2,0)(0,1)(1,1)(2,1)(3,0)(4,0)(3,1)(4,1)");
}

TEST(Schedule, InterleavedGroupsDefaultToOneRoundOfRanks) {
  EXPECT_EQ(make_schedules(interleaved(4, 2, 0, 8)), make_schedules(interleaved(4, 2, 4, 8)));
  EXPECT_NE(make_schedules(interleaved(4, 2, 0, 8)), make_schedules(interleaved(4, 2, 8, 8)));
}

TEST(Schedule, InterleavedWarmUp) {
  // The first steady forward follows the warm-up at once, hence one more leading forward.
  ScheduleOptions options = interleaved(4, 2, 4, 8);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(leading_forwards(make_schedule(options, rank)), 10 - 2 * rank + 1);
  }
  options.pairs = JobPairs::kForwardBackward;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(leading_forwards(make_schedule(options, rank)), 11 - 2 * rank + 1);
  }
}

TEST(Schedule, ZeroBubbleH1) {
  const ScheduleOptions options{.kind = Kind::kZbH1, .num_ranks = 3, .num_microbatches = 4};
  EXPECT_EQ(short_order_of(options, 0), "F0 F1 F2 D0 W0 F3 D1 W1 D2 W2 D3 W3");
  EXPECT_EQ(short_order_of(options, 1), "F0 F1 D0 F2 D1 W0 F3 D2 W1 D3 W2 W3");
  EXPECT_EQ(short_order_of(options, 2), "F0 D0 F1 D1 F2 D2 W0 F3 D3 W1 W2 W3");
}

TEST(Schedule, ZeroBubbleV) {
  const ScheduleOptions options{
      .kind = Kind::kZbV, .num_ranks = 2, .virtual_stages = 2, .num_microbatches = 3};
  EXPECT_EQ(order_of(options, 0),
            "F0.0 F1.0 F2.0 F0.1 D0.1 W0.1 F1.1 D1.1 W1.1 D0.0 W0.0 F2.1 D2.1 D1.0 W2.1 D2.0 W1.0 "
            "W2.0");
  EXPECT_EQ(order_of(options, 1),
            "F0.0 F0.1 F1.0 F1.1 D0.1 W0.1 F2.0 D0.0 W0.0 F2.1 D1.1 D1.0 D2.1 D2.0 W1.1 W1.0 W2.1 "
            "W2.0");
}

// Step counts of DualPipeV: 2(P-r-1) F0, (r+1) F0F1, (P-r-1) D1 W1 F1, (M-2P+r+1) F0B1 F1B0,
// (P-r-1) B1 F1B0, (r+1) B1B0 of which the second half splits, (P-r-1) W D0, (r+1) W.
TEST(Schedule, DualpipeV) {
  const ScheduleOptions options{
      .kind = Kind::kDualpipeV, .num_ranks = 2, .virtual_stages = 2, .num_microbatches = 4};
  EXPECT_EQ(order_of(options, 0),
            "F0.0 F1.0 F2.0 F0.1 D0.1 W0.1 F1.1 F3.0 B1.1 F2.1 B0.0 B2.1 F3.1 B1.0 B3.1 D2.0 W2.0 "
            "D3.0 W3.0");
  EXPECT_EQ(order_of(options, 1),
            "F0.0 F0.1 F1.0 F1.1 F2.0 B0.1 F2.1 B0.0 F3.0 B1.1 F3.1 B1.0 B2.1 B2.0 D3.1 D3.0 W3.1 "
            "W3.0");
}

TEST(Schedule, EveryKindRunsOnOneRank) {
  for (const Kind kind : kAllKinds) {
    const bool one_stage =
        kind == Kind::kGpipe || kind == Kind::kOneForwardOneBackward || kind == Kind::kZbH1;
    const ScheduleOptions options{
        .kind = kind, .virtual_stages = one_stage ? 1 : 2, .num_microbatches = 2};
    EXPECT_EQ(make_schedules(options).size(), 1u) << schedule_name(kind);
  }
  EXPECT_EQ(short_order_of({.kind = Kind::kZbH1, .num_microbatches = 2}, 0), "F0 D0 W0 F1 D1 W1");
}

/// Every schedule that exists for up to 5 ranks, 3 virtual stages, 13 microbatches.
std::vector<ScheduleOptions> small_schedules() {
  std::vector<ScheduleOptions> result;
  for (const Kind kind : kAllKinds) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (int stages = 1; stages <= 3; ++stages) {
        for (int64_t microbatches = 1; microbatches <= 13; ++microbatches) {
          for (const int64_t group_size : {0, 3, 5, 7}) {
            const ScheduleOptions options{.kind = kind,
                                          .num_ranks = ranks,
                                          .virtual_stages = stages,
                                          .num_microbatches = microbatches,
                                          .group_size = group_size};
            try {
              check_schedule(options);
              result.push_back(options);
            } catch (const ConfigError&) {
            }
          }
        }
      }
    }
  }
  return result;
}

TEST(Schedule, MicrobatchesPassAVirtualStageInOrder) {
  for (const ScheduleOptions& options : small_schedules()) {
    for (const Schedule& schedule : make_schedules(options)) {
      std::map<std::pair<int, char>, int> seen;
      for (const Job& job : schedule) {
        // A whole backward is a dgrad and a wgrad.
        const std::string_view parts = job.kind == JobKind::kForward ? "F"
                                       : job.kind == JobKind::kDgrad ? "D"
                                       : job.kind == JobKind::kWgrad ? "W"
                                                                     : "DW";
        for (const char part : parts) {
          ASSERT_EQ(job.microbatch, (seen[{job.virtual_stage, part}]++)) << to_string(schedule);
        }
      }
    }
  }
}

TEST(Schedule, OneRankIsTheSameAsAllRanks) {
  for (const ScheduleOptions& options : small_schedules()) {
    if (options.num_microbatches == 13) {
      const std::vector<Schedule> all = make_schedules(options);
      for (int rank = 0; rank < options.num_ranks; ++rank) {
        ASSERT_EQ(make_schedule(options, rank), all[static_cast<size_t>(rank)]);
      }
    }
  }
}

TEST(Schedule, OnlySomeSplitBackward) {
  for (const ScheduleOptions& options : small_schedules()) {
    bool has_wgrads = false;
    for (const Schedule& schedule : make_schedules(options)) {
      has_wgrads |= std::ranges::count(schedule, JobKind::kWgrad, &Job::kind) > 0;
    }
    ASSERT_EQ(has_wgrads, splits_backward(options.kind)) << schedule_name(options.kind);
  }
}

TEST(Schedule, StagesGoRoundTheRanks) {
  const ScheduleOptions options = interleaved(3, 2, 0, 3);
  EXPECT_EQ(stage_of(options, 2, 0), 2);
  EXPECT_EQ(stage_of(options, 0, 1), 3);
  EXPECT_EQ(place_of(options, 5), (StagePlace{2, 1}));
}

TEST(Schedule, StagesGoDownAndUpTheV) {
  const ScheduleOptions options{.kind = Kind::kZbV, .num_ranks = 3, .virtual_stages = 2};
  EXPECT_EQ(stage_of(options, 0, 0), 0);
  EXPECT_EQ(stage_of(options, 2, 0), 2);
  EXPECT_EQ(stage_of(options, 2, 1), 3);
  EXPECT_EQ(stage_of(options, 0, 1), 5);
}

TEST(Schedule, PlaceIsTheInverseOfStage) {
  for (const ScheduleOptions& options : small_schedules()) {
    for (int stage = 0; stage < options.num_stages(); ++stage) {
      const StagePlace place = place_of(options, stage);
      ASSERT_EQ(stage_of(options, place.rank, place.virtual_stage), stage);
    }
  }
  EXPECT_THROW(place_of({.num_ranks = 2}, 2), InternalError);
  EXPECT_THROW(stage_of({.num_ranks = 2}, 0, 1), InternalError);
}

TEST(Schedule, TextIsReadBack) {
  for (const ScheduleOptions& options : small_schedules()) {
    for (const Schedule& schedule : make_schedules(options)) {
      ASSERT_EQ(parse_schedule(to_string(schedule)), schedule);
    }
  }
  EXPECT_EQ(to_string(parse_schedule("  F0.0 W12.3  B1.0 D7.1 ")), "F0.0 W12.3 B1.0 D7.1");
  EXPECT_TRUE(parse_schedule("").empty());
}

TEST(Schedule, RefusesTextThatIsNoSchedule) {
  for (const char* text :
       {"F0", "G0.0", "F.0", "F0.", "F0.0.0", "F-1.0", "f0.0", "F99999999999.0", "F0.0,B0.0"}) {
    const std::string message = message_of<DataError>([&] { parse_schedule(text); });
    EXPECT_THAT(message, HasSubstr(text));
    EXPECT_THAT(message, HasSubstr("as in F0.0"));
  }
}

TEST(Schedule, NamesAreThoseOfTheRunFile) {
  for (const Kind kind : kAllKinds) {
    EXPECT_EQ(schedule_kind(schedule_name(kind)), kind);
  }
  EXPECT_EQ(schedule_name(Kind::kOneForwardOneBackward), "1f1b");
  EXPECT_EQ(message_of<ConfigError>([] { schedule_kind("zbv"); }),
            "parallel.schedule = \"zbv\": expected one of gpipe, 1f1b, interleaved, zb-h1, zb-v, "
            "dualpipe-v; did you mean \"zb-v\"?");
}

TEST(Schedule, RefusesVirtualStagesThatItHasNoPlaceFor) {
  EXPECT_EQ(refusal({.num_ranks = 2, .virtual_stages = 2, .num_microbatches = 4}),
            "parallel.virtual_stages = 2: schedule \"1f1b\" has one virtual stage per rank; set "
            "parallel.virtual_stages = 1 or parallel.schedule = \"interleaved\"");
  EXPECT_THAT(refusal({.kind = Kind::kZbH1, .num_ranks = 2, .virtual_stages = 2}),
              HasSubstr("schedule \"zb-h1\" has one virtual stage"));
  EXPECT_THAT(refusal({.kind = Kind::kGpipe, .num_ranks = 2, .virtual_stages = 2}),
              HasSubstr("schedule \"gpipe\" has one virtual stage"));
  EXPECT_EQ(refusal(interleaved(4, 1, 0, 8)),
            "parallel.virtual_stages = 1: schedule \"interleaved\" needs at least 2 virtual stages "
            "per rank; set parallel.virtual_stages = 2 or parallel.schedule = \"1f1b\"");
  EXPECT_EQ(refusal({.kind = Kind::kZbV, .num_ranks = 4, .num_microbatches = 8}),
            "parallel.virtual_stages = 1: schedule \"zb-v\" has two virtual stages per rank; set "
            "parallel.virtual_stages = 2");
  EXPECT_THAT(
      refusal(
          {.kind = Kind::kDualpipeV, .num_ranks = 4, .virtual_stages = 3, .num_microbatches = 8}),
      HasSubstr("parallel.virtual_stages = 3: schedule \"dualpipe-v\""));
}

TEST(Schedule, RefusesMicrobatchesThatDoNotFit) {
  EXPECT_EQ(refusal(interleaved(4, 2, 0, 3)),
            "train.global_batch = 3: makes 3 microbatches per rank and step, but schedule "
            "\"interleaved\" needs at least parallel.pipeline = 4; the nearest is 4, or set "
            "parallel.schedule = \"1f1b\" and parallel.virtual_stages = 1");
  EXPECT_EQ(refusal(interleaved(4, 2, 0, 10)),
            "train.global_batch = 10: makes 10 microbatches per rank and step, and with schedule "
            "\"interleaved\" and parallel.microbatch_group_size = 4 the 2 of the last group must "
            "be at least parallel.pipeline = 4; the nearest are 8 and 12, or set "
            "parallel.microbatch_group_size = 5");
  // Microbatches of 3 sequences on 2 data-parallel ranks.
  EXPECT_THAT(message_of<ConfigError>([] { check_schedule(interleaved(4, 2, 0, 10), 6); }),
              AllOf(HasSubstr("train.global_batch = 60: makes 10 microbatches"),
                    HasSubstr("the nearest are 48 and 72, or")));
  EXPECT_EQ(
      refusal(
          {.kind = Kind::kDualpipeV, .num_ranks = 4, .virtual_stages = 2, .num_microbatches = 7}),
      "train.global_batch = 7: makes 7 microbatches per rank and step, but schedule \"dualpipe-v\" "
      "needs at least 2 * parallel.pipeline = 8; the nearest is 8, or set parallel.schedule = "
      "\"zb-v\"");
}

TEST(Schedule, RefusesGroupsThatDoNotFit) {
  EXPECT_EQ(
      refusal(interleaved(4, 2, 3, 9)),
      "parallel.microbatch_group_size = 3: schedule \"interleaved\" needs parallel.pipeline = "
      "4 to 9 (microbatches per rank and step); the nearest is 5");
  EXPECT_THAT(refusal(interleaved(4, 2, 12, 9)), HasSubstr("the nearest is 9"));
  EXPECT_EQ(refusal({.num_ranks = 4, .num_microbatches = 8, .group_size = 4}),
            "parallel.microbatch_group_size = 4: schedule \"1f1b\" has no groups; set "
            "parallel.microbatch_group_size = 0 or parallel.schedule = \"interleaved\"");
}

TEST(Schedule, RefusesSizesBelowOne) {
  EXPECT_THAT(refusal({.num_ranks = 0}), HasSubstr("parallel.pipeline = 0"));
  EXPECT_THAT(refusal({.virtual_stages = 0}), HasSubstr("parallel.virtual_stages = 0"));
  EXPECT_THAT(refusal({.num_microbatches = 0}), HasSubstr("train.global_batch = 0: makes 0"));
  EXPECT_THAT(refusal({.num_microbatches = int64_t{1} << 40}), HasSubstr("are possible"));
  EXPECT_THAT(refusal({.group_size = -1}), HasSubstr("parallel.microbatch_group_size = -1"));
}

TEST(Schedule, WhatARefusalNamesIsAccepted) {
  for (int64_t microbatches = 4; microbatches <= 40; ++microbatches) {
    for (int64_t group_size = 4; group_size <= microbatches; ++group_size) {
      try {
        check_schedule(interleaved(4, 2, group_size, microbatches));
      } catch (const ConfigError& error) {
        const std::string message = error.what();
        const auto number_after = [&](const std::string& words) {
          const size_t at = message.find(words);
          return at == std::string::npos ? 0 : std::stoll(message.substr(at + words.size()));
        };
        check_schedule(interleaved(4, 2, number_after("or set parallel.microbatch_group_size = "),
                                   microbatches));
        const int64_t nearest = number_after("the nearest is ") + number_after("the nearest are ");
        check_schedule(interleaved(4, 2, group_size, nearest));
      }
    }
  }
}

}  // namespace
}  // namespace braid
