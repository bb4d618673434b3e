#include "tune/describe_search.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tune/small_search.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// Two layouts with round figures; the second exposes tensor communication and recomputes.
LayoutSearch two_layouts() {
  LayoutSearch search{
      .counts = {.looked_at = 1500, .refused = 500, .too_big = 600, .behind = 398, .simulated = 2},
      .memory_bytes = int64_t{80} << 30};
  RankedLayout best{.layout = {.data = 4, .shard = ShardKind::kOptimizer},
                    .step_ns = 1'000'000'000,
                    .needed_bytes = int64_t{40} << 30,
                    .tokens_per_s_per_rank = 1234.5,
                    .power_w = 700,
                    .mfu = 0.5};
  best.means.compute_ns = 9e8;
  best.means.all_exposed_ns = best.means.exposed_ns[0] = best.means.communication_ns[0] = 1e8;
  RankedLayout slower = best;
  slower.layout = {.tensor = 4, .recompute = RecomputeChoice::kNorms, .sequence_parallel = true};
  slower.step_ns = 1'200'000'000;
  slower.means.compute_ns = 9.5e8;
  slower.means.exposed_ns = {};
  slower.means.all_exposed_ns = 2.5e8;
  slower.means.exposed_ns[static_cast<size_t>(GroupKind::kTensor)] = 2.5e8;
  search.ranked = {best, slower};
  return search;
}

TEST(DescribeSearch, HasCountsTableReasonsAndCommand) {
  const std::string text =
      describe_search(two_layouts(), small_search_run(4), {.run_file = "my run.toml"});
  for (const char* part :
       {"layouts   1.50K considered: 500 refused by the rules, 600 too big for 80.0 GiB, 398 "
        "slower by estimate, 2 simulated\n",
        "   1  dp4 shard=optimizer mb1 ", "1234.5  50.0%", " 0.0%    10.0%       40.0\n",
        "   2  tp4 mb1 recompute=norms ", "20.8%       40.0\n",
        "why not  2  +20.0%: more exposed tensor communication (+250 ms), more recompute "
        "(+50.0 ms)\n",
        // 1e9 / 1234.5 / 3600, and 700 / 1234.5
        "price     the best: 225 device-hours per billion tokens, at most 0.567 J per token in "
        "devices of 700 W\n",
        "the best  braid train 'my run.toml' \\\n", "--set parallel.ranks=4 \\\n",
        "--set parallel.shard=optimizer\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(DescribeSearch, SaysThatRowsOfExpertsHaveAllTheRoom) {
  LayoutSearch search = two_layouts();
  RunConfig config = small_search_run(4);
  EXPECT_THAT(describe_search(search, config), Not(HasSubstr("room ")));
  search.ranked.back().layout.expert = 4;
  EXPECT_THAT(describe_search(search, config),
              HasSubstr("room      ranks with different experts have room for all rows that can "
                        "come; with moe.capacity = 1.5 more layouts fit\n"));
  config.moe.capacity = 2;
  EXPECT_THAT(describe_search(search, config), Not(HasSubstr("room ")));
}

TEST(DescribeSearch, LeavesOutTheEnergyOfDevicesOfUnknownPower) {
  LayoutSearch search = two_layouts();
  search.ranked.front().power_w = 0;
  EXPECT_THAT(describe_search(search, small_search_run(4)),
              HasSubstr("225 device-hours per billion tokens\n"));
  const auto json = nlohmann::json::parse(search_json(search, small_search_run(4), 2));
  EXPECT_TRUE(json["layouts"][0]["most_joules_per_token"].is_null());
  EXPECT_NEAR(json["layouts"][1]["most_joules_per_token"].get<double>(), 700 / 1234.5, 1e-9);
}

TEST(DescribeSearch, MarksTheRunFilesOwnLayoutAndSaysItsPlace) {
  LayoutSearch search = two_layouts();
  search.ranked[1].is_given = true;
  search.given = {.layout = search.ranked[1].layout,
                  .needed_bytes = search.ranked[1].needed_bytes,
                  .step_ns = search.ranked[1].step_ns,
                  .fits = true};
  const std::string text = describe_search(search, small_search_run(4));
  EXPECT_THAT(text, HasSubstr("\n   1  dp4 shard=optimizer mb1 "));
  EXPECT_THAT(text, HasSubstr("\n   2* tp4 mb1 recompute=norms "));
  EXPECT_THAT(text,
              HasSubstr("\nrun file  place 2 of 2: tp4 mb1 recompute=norms, 1.20 s (+20.0%)\n"));
  const auto json = nlohmann::json::parse(search_json(search, small_search_run(4), 1));
  EXPECT_EQ(json["given"]["place"], 2);
  EXPECT_EQ(json["given"]["layout"], "tp4 mb1 recompute=norms");
  std::swap(search.ranked[0], search.ranked[1]);
  EXPECT_THAT(describe_search(search, small_search_run(4)), HasSubstr(" (the fastest)\n"));
}

TEST(DescribeSearch, SaysWhyTheRunFilesOwnLayoutHasNoPlace) {
  LayoutSearch search = two_layouts();
  search.ranked.clear();
  search.given = {.layout = {.data = 4}, .estimated_ns = 1.25e9, .needed_bytes = int64_t{70} << 30};
  EXPECT_EQ(describe_found(search), "run file  dp4 mb1: 1.25 s, 70.0 GiB by estimate\n");
  search.given.needed_bytes = int64_t{82} << 30;
  EXPECT_EQ(describe_found(search),
            "run file  dp4 mb1: 1.25 s, 82.0 GiB by estimate, more than 80.0 GiB\n");
  search.given.step_ns = 1'500'000'000;
  EXPECT_EQ(describe_found(search, 10),
            "run file  dp4 mb1 needs 82.0 GiB, more than 80.0 GiB; it would take 1.50 s\n");
  search.given.refusal = "parallel.ranks = 4: too few";
  EXPECT_EQ(describe_found(search),
            "run file  its layout is refused: parallel.ranks = 4: too few\n");
  EXPECT_EQ(
      nlohmann::json::parse(search_json(two_layouts(), small_search_run(4), 1))["given"]["fits"],
      false);
}

TEST(DescribeSearch, RowsAreLimited) {
  const std::string text = describe_search(two_layouts(), small_search_run(4), {.rows = 1});
  EXPECT_THAT(text, ::testing::Not(HasSubstr("tp4")));
  EXPECT_THAT(text, HasSubstr("braid train run.toml"));
}

TEST(DescribeSearch, JsonHasTheSame) {
  const auto json = nlohmann::json::parse(search_json(two_layouts(), small_search_run(4), 10));
  EXPECT_EQ(json["counts"]["looked_at"], 1500);
  EXPECT_EQ(json["memory_limit_bytes"], int64_t{80} << 30);
  ASSERT_EQ(json["layouts"].size(), 2u);
  EXPECT_EQ(json["layouts"][0]["layout"], "dp4 shard=optimizer mb1");
  EXPECT_EQ(json["layouts"][0]["step_ns"], 1'000'000'000);
  EXPECT_EQ(json["layouts"][0]["exposed_by_kind_ns"]["data"], 1e8);
  EXPECT_THAT(json["layouts"][1]["set"].dump(), HasSubstr("parallel.tensor=4"));
}

}  // namespace
}  // namespace braid
