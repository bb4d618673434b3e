#include "parallel/paired_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "parallel/schedule_stats.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = ScheduleKind;

ScheduleOptions options_of(Kind kind, int ranks, int64_t microbatches, int virtual_stages = 1,
                           int64_t group_size = 0) {
  return {.kind = kind,
          .num_ranks = ranks,
          .virtual_stages = virtual_stages,
          .num_microbatches = microbatches,
          .group_size = group_size,
          .pairs = JobPairs::kForwardBackward};
}

/// "F3.0+B0.0".
std::vector<std::string> names(const std::vector<JobPair>& pairs) {
  std::vector<std::string> list;
  for (const JobPair& pair : pairs) {
    list.push_back(to_string({pair.first}) + "+" + to_string({pair.second}));
  }
  return list;
}

TEST(PairedJobs, OneForwardOneBackward) {
  const ScheduleOptions options = options_of(Kind::kOneForwardOneBackward, 2, 5);
  EXPECT_EQ(to_string(make_schedule(options, 0)),
            "F0.0 F1.0 F2.0 F3.0 B0.0 F4.0 B1.0 B2.0 B3.0 B4.0");
  EXPECT_EQ(to_string(make_schedule(options, 1)),
            "F0.0 F1.0 B0.0 F2.0 B1.0 F3.0 B2.0 F4.0 B3.0 B4.0");
  EXPECT_THAT(names(paired_jobs(options, 0)), ElementsAre("F3.0+B0.0", "F4.0+B1.0"));
  EXPECT_THAT(names(paired_jobs(options, 1)),
              ElementsAre("F1.0+B0.0", "F2.0+B1.0", "F3.0+B2.0", "F4.0+B3.0"));
}

// The last forward of such a warm-up does not pair with the backward after it: that backward waits
// for the next rank's pair with this same microbatch.
TEST(PairedJobs, FewMicrobatchesHaveFewPairs) {
  const ScheduleOptions options = options_of(Kind::kOneForwardOneBackward, 2, 3);
  EXPECT_EQ(to_string(make_schedule(options, 0)), "F0.0 F1.0 F2.0 B0.0 B1.0 B2.0");
  EXPECT_THAT(paired_jobs(options, 0), IsEmpty());
  EXPECT_THAT(names(paired_jobs(options, 1)), ElementsAre("F1.0+B0.0", "F2.0+B1.0"));
}

TEST(PairedJobs, Halves) {
  const ScheduleOptions options{.num_microbatches = 4, .pairs = JobPairs::kHalves};
  EXPECT_EQ(to_string(make_schedule(options, 0)), "F0.0 F1.0 B0.0 B1.0 F2.0 F3.0 B2.0 B3.0");
  EXPECT_THAT(names(paired_jobs(options, 0)),
              ElementsAre("F0.0+F1.0", "B0.0+B1.0", "F2.0+F3.0", "B2.0+B3.0"));
  EXPECT_EQ(schedule_stats(options).peak_activations[0], 2);
}

TEST(PairedJobs, AreNotThereUnlessAskedFor) {
  EXPECT_THAT(paired_jobs({.num_ranks = 2, .num_microbatches = 4}, 0), IsEmpty());
}

TEST(PairedJobs, SchedulesWithoutPairsAreRefused) {
  EXPECT_THAT(message_of<ConfigError>([] { check_schedule(options_of(Kind::kGpipe, 2, 4)); }),
              HasSubstr("overlap.pair_forward_backward = \"forward_backward\": in schedule "
                        "\"gpipe\" every backward waits for the forward beside it, so there are no "
                        "pairs; set parallel.schedule = \"1f1b\""));
  EXPECT_THAT(message_of<ConfigError>([] { check_schedule(options_of(Kind::kZbV, 2, 4, 2)); }),
              HasSubstr("set parallel.schedule = \"dualpipe-v\""));
  // Too few for dualpipe-v, which without pairs would become zb-v again.
  EXPECT_THAT(message_of<ConfigError>([] { check_schedule(options_of(Kind::kZbV, 2, 3, 2)); }),
              HasSubstr("set parallel.schedule = \"1f1b\" and parallel.virtual_stages = 1"));
  EXPECT_THAT(
      message_of<ConfigError>([] { check_schedule(options_of(Kind::kDualpipeV, 2, 3, 2)); }),
      HasSubstr("set parallel.schedule = \"1f1b\" and parallel.virtual_stages = 1"));
  ScheduleOptions halves{.num_ranks = 2, .num_microbatches = 4, .pairs = JobPairs::kHalves};
  EXPECT_THAT(message_of<ConfigError>([&] { check_schedule(halves); }),
              HasSubstr("overlap.pair_forward_backward = \"halves\": is for one pipeline rank"));
}

/// Runs all ranks with each pair as one job of one unit of time, other jobs too (wgrads, which
/// concern nobody, are left out). By rank: activations held at most. Fails where the ranks wait for
/// each other.
std::vector<int64_t> run_pairs(const ScheduleOptions& options) {
  struct Rank {
    Schedule jobs;
    std::set<size_t> pairs;  // where they begin in `jobs`
    size_t next = 0;
    int64_t held = 0;
    int64_t most_held = 0;
  };
  std::vector<Rank> ranks(static_cast<size_t>(options.num_ranks));
  size_t left = 0;
  for (int r = 0; r < options.num_ranks; ++r) {
    Rank& rank = ranks[static_cast<size_t>(r)];
    rank.jobs = make_schedule(options, r);
    std::erase_if(rank.jobs, [](const Job& job) { return job.kind == JobKind::kWgrad; });
    for (const JobPair& pair : paired_jobs(options, r)) {
      const auto found = std::ranges::find(rank.jobs, pair.first);
      EXPECT_EQ(*(found + 1), pair.second);
      rank.pairs.insert(static_cast<size_t>(found - rank.jobs.begin()));
    }
    left += rank.jobs.size();
  }
  std::set<std::tuple<bool, int, int>> done;  // forward?, microbatch, stage
  const auto is_ready = [&](int r, const Job& job) {
    const int stage = stage_of(options, r, job.virtual_stage);
    if (job.kind == JobKind::kForward) {
      return stage == 0 || done.contains({true, job.microbatch, stage - 1});
    }
    return stage == options.num_stages() - 1 ? done.contains({true, job.microbatch, stage})
                                             : done.contains({false, job.microbatch, stage + 1});
  };
  for (bool moves = true; moves && left > 0;) {
    moves = false;
    for (int r = 0; r < options.num_ranks; ++r) {
      Rank& rank = ranks[static_cast<size_t>(r)];
      while (rank.next < rank.jobs.size()) {
        const size_t count = rank.pairs.contains(rank.next) ? 2 : 1;
        const auto begin = rank.jobs.begin() + static_cast<ptrdiff_t>(rank.next);
        const std::vector<Job> jobs(begin, begin + static_cast<ptrdiff_t>(count));
        if (!std::ranges::all_of(jobs, [&](const Job& job) { return is_ready(r, job); })) {
          break;
        }
        for (const Job& job : jobs) {
          const bool forward = job.kind == JobKind::kForward;
          done.insert({forward, job.microbatch, stage_of(options, r, job.virtual_stage)});
          rank.held += forward ? 1 : 0;
          rank.most_held = std::max(rank.most_held, rank.held);
        }
        rank.held -= std::ranges::count_if(
            jobs, [](const Job& job) { return job.kind != JobKind::kForward; });
        rank.next += count;
        left -= count;
        moves = true;
      }
    }
  }
  EXPECT_EQ(left, 0u) << schedule_name(options.kind) << " " << options.num_ranks << " ranks "
                      << options.num_microbatches << " microbatches " << options.virtual_stages
                      << " stages, groups of " << options.group_size;
  std::vector<int64_t> most_held;
  for (const Rank& rank : ranks) {
    most_held.push_back(rank.most_held);
  }
  return most_held;
}

TEST(PairedJobs, RanksDoNotWaitForEachOtherInACircle) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (int64_t microbatches = 1; microbatches <= 13; ++microbatches) {
      const std::vector<int64_t> held =
          run_pairs(options_of(Kind::kOneForwardOneBackward, ranks, microbatches));
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(held[static_cast<size_t>(rank)],
                  std::min<int64_t>(2 * (ranks - rank), microbatches));
      }
      run_pairs(options_of(Kind::kZbH1, ranks, microbatches));
      if (microbatches >= 2 * ranks) {
        run_pairs(options_of(Kind::kDualpipeV, ranks, microbatches, 2));
      }
      for (int64_t group_size = ranks; group_size <= microbatches; ++group_size) {
        const int64_t rest = microbatches % group_size;
        for (int stages = 2; stages <= 3 && (rest == 0 || rest >= ranks); ++stages) {
          run_pairs(options_of(Kind::kInterleaved, ranks, microbatches, stages, group_size));
        }
      }
    }
  }
}

// Messages taking no time, a pair as long as its parts.
TEST(PairedJobs, DeepWarmUpHasNoMoreBubble) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (const int64_t microbatches : {1, 3, 6, 12, 24}) {
      for (const Kind kind : {Kind::kOneForwardOneBackward, Kind::kZbH1}) {
        ScheduleOptions options = options_of(kind, ranks, microbatches);
        const int64_t deep = schedule_stats(options).total_time;
        options.pairs = JobPairs::kNone;
        const int64_t plain = schedule_stats(options).total_time;
        if (kind == Kind::kZbH1 && microbatches >= 2 * ranks) {
          EXPECT_LE(deep, plain) << ranks << " " << microbatches;
        } else if (kind != Kind::kZbH1) {
          EXPECT_EQ(deep, plain) << ranks << " " << microbatches;
        }
      }
    }
  }
}

}  // namespace
}  // namespace braid
