#include <nlohmann/json.hpp>

#include "cli/cli_fixture.h"
#include "sim/profile.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanSearch : public Cli {
 protected:
  PlanSearch() {
    write("run.toml",
          "[model]\nlayers = 4\nwidth = 256\nheads = 4\nvocabulary = 512\n"
          "[train]\nsequence = 1024\nglobal_batch = 8\ndtype = \"bfloat16\"\n");
  }

  static Words search(const Words& more) {
    Words words{"plan", "run.toml", "--search", "--simulate", "6", "--max-context", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(PlanSearch, RanksLayoutsAndSaysHowToRunTheBest) {
  const std::string text = output_of(search({"--cluster", "h100x4", "--top", "3"}));
  for (const char* part : {"cost      h100x4, analytic", "layouts   ", " considered: ",
                           " 6 simulated\n", "rank  layout", "\n   3  ", "why not  2  +",
                           "the best  braid train run.toml \\\n", "--set parallel.ranks=4"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("\n   4  ")));
  EXPECT_THAT(text, Not(HasSubstr("\r")));  // no progress bar where nobody watches
  EXPECT_FALSE(exists("runs"));
}

TEST_F(PlanSearch, TheFirstTableHasTheLayoutOfTheRunFile) {
  write("run.toml",
        "[model]\nlayers = 4\nwidth = 256\nheads = 4\nvocabulary = 512\n"
        "[train]\nsequence = 1024\nglobal_batch = 8\ndtype = \"bfloat16\"\n"
        "[parallel]\npipeline = 2\nshard = \"optimizer\"\n");
  const std::string text = output_of(search({"--cluster", "h100x4"}));
  EXPECT_THAT(text, ::testing::StartsWith("run file  pp2 dp2 shard=optimizer mb1: "));
  const std::string first = text.substr(0, text.find("\nlayouts "));
  EXPECT_THAT(first, HasSubstr(" by estimate\nfound     "));
  EXPECT_THAT(first, HasSubstr(": pp2 dp2 shard=optimizer mb1, "));
  EXPECT_THAT(first, HasSubstr("; 1 simulated\nrank  layout"));
  EXPECT_THAT(first, HasSubstr("\n   1* pp2 dp2 shard=optimizer mb1 "));
  EXPECT_THAT(text, HasSubstr("\nrun file  place "));
}

TEST_F(PlanSearch, MomentsAreChosenOnRequest) {
  const auto found = nlohmann::json::parse(
      output_of(search({"--cluster", "h100x2", "--vary", "optimizer.moments_dtype", "--json"})));
  EXPECT_THAT(found["layouts"].dump(), HasSubstr("moments=bfloat16"));
  EXPECT_THAT(error_of(search({"--cluster", "h100x4", "--vary", "train.dtype"}), 2),
              HasSubstr("--vary \"train.dtype\": the search does not choose this key"));
}

TEST_F(PlanSearch, TheSavedRunTakesWhatTheTableSays) {
  const auto found = nlohmann::json::parse(output_of(
      search({"--cluster", "h100x4", "--json", "--save-best", "best.toml", "--top", "1"})));
  ASSERT_EQ(found["layouts"].size(), 1u);
  const auto simulated =
      nlohmann::json::parse(output_of({"simulate", "best.toml", "--cluster", "h100x4", "--json"}));
  EXPECT_EQ(simulated["step_ns"], found["layouts"][0]["step_ns"]);
  Words words{"simulate", "run.toml", "--cluster", "h100x4", "--json"};
  for (const auto& override_text : found["layouts"][0]["set"]) {
    words.insert(words.end(), {"--set", override_text.get<std::string>()});
  }
  EXPECT_EQ(nlohmann::json::parse(output_of(words))["step_ns"], simulated["step_ns"]);
}

TEST_F(PlanSearch, WhatIsSetStays) {
  const std::string text = output_of(search({"--cluster", "h100x4", "--set", "parallel.pipeline=2",
                                             "--set", "memory.recompute=full", "--json"}));
  const auto layouts = nlohmann::json::parse(text)["layouts"];
  ASSERT_FALSE(layouts.empty());
  for (const auto& layout : layouts) {
    EXPECT_THAT(layout["layout"].get<std::string>(),
                AllOf(HasSubstr("pp2"), HasSubstr("recompute=full")));
  }
}

TEST_F(PlanSearch, RanksMayBeFewerThanDevices) {
  const std::string text = output_of(search({"--cluster", "h100x8", "--ranks", "2", "--json"}));
  EXPECT_THAT(text, HasSubstr("parallel.ranks=2"));
}

TEST_F(PlanSearch, TheProfileOfACpuHasTheLinksOfTheRun) {
  write("cpu.json", print_profile({.device_kind = "cpu"}));
  const auto step_ns = [this](const std::string& rate) {
    const std::string text =
        output_of(search({"--profile", "cpu.json", "--ranks", "2", "--set", "parallel.data=2",
                          "--set", "links.data_gb_per_s=" + rate, "--json", "--top", "1"}));
    return nlohmann::json::parse(text)["layouts"][0]["step_ns"].get<int64_t>();
  };
  EXPECT_GT(step_ns("0.001"), step_ns("100") + 1'000'000);
}

TEST_F(PlanSearch, BadRequestsAreRefused) {
  EXPECT_THAT(error_of(search({}), 2), HasSubstr("--search needs a machine: give --cluster"));
  EXPECT_THAT(error_of(search({"--cluster", "h100x4", "--fix", "train.steps"}), 2),
              HasSubstr("--fix \"train.steps\": the search does not choose this key"));
  EXPECT_THAT(error_of(search({"--cluster", "h100x4", "--ranks", "8"}), 2),
              HasSubstr("cluster h100x4 has 4 devices, fewer than the 8 ranks"));
  EXPECT_THAT(error_of(search({"--cluster", "h100x4", "--device-memory", "1MiB"}), 2),
              HasSubstr("no layout of 4 ranks fits 1.00 MiB of memory"));
  EXPECT_THAT(
      error_of(search({"--cluster", "h100x4", "--set", "optimizer.min_learning_rate=1"}), 2),
      HasSubstr("optimizer.min_learning_rate = 1"));
}

}  // namespace
}  // namespace braid
