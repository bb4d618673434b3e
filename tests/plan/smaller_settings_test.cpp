#include "plan/smaller_settings.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "config/validate.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

RunConfig config_of(int64_t microbatch, int64_t global_batch, int64_t ranks = 1) {
  RunConfig config;
  config.model.layers = 8;
  config.model.width = 32;
  config.model.heads = 2;
  config.train.microbatch = microbatch;
  config.train.global_batch = global_batch;
  config.parallel.ranks = ranks;
  config.logging.run_folder = "unused";
  return resolved(config);
}

std::vector<std::string> settings_of(const RunConfig& config) {
  std::vector<std::string> texts;
  for (const SettingChanges& changes : smaller_settings(config, 8)) {
    texts.push_back(describe_changes(changes));
  }
  return texts;
}

TEST(SmallerSettings, ComeWithTheCheapestFirstAndTogetherAtTheEnd) {
  EXPECT_THAT(
      settings_of(config_of(4, 12)),
      ElementsAre("memory.recompute = \"norms\"", "memory.recompute = \"attention\"",
                  "train.microbatch = 3", "train.microbatch = 2", "train.microbatch = 1",
                  "memory.recompute = \"full\"", "memory.offload_layers = 4",
                  "memory.offload_layers = 8", "train.global_batch = 4",
                  "train.microbatch = 1, memory.recompute = \"full\"",
                  "train.microbatch = 1, memory.recompute = \"full\", memory.offload_layers = 8"));
}

// Each microbatch has whole pairs of answers.
TEST(SmallerSettings, KeepPairsTogether) {
  RunConfig config = config_of(4, 12);
  config.preference.loss = "dpo";
  EXPECT_THAT(settings_of(config), AllOf(Contains("train.microbatch = 2"),
                                         Not(Contains(StartsWith("train.microbatch = 3"))),
                                         Not(Contains(HasSubstr("train.microbatch = 1")))));
}

TEST(SmallerSettings, BeginWithoutCopiesOfTheState) {
  RunConfig config = config_of(1, 1);
  config.checkpoint.async = true;
  config.train.steps = config.checkpoint.interval;  // it saves at its end alone
  EXPECT_THAT(settings_of(config), Not(Contains(HasSubstr("async"))));
  ++config.train.steps;
  EXPECT_EQ(settings_of(config).front(), "checkpoint.async = false");
  EXPECT_THAT(settings_of(config).back(), StartsWith("checkpoint.async = false, "));
}

TEST(SmallerSettings, ShardWhatDataAndContextParallelRanksShare) {
  EXPECT_THAT(settings_of(config_of(1, 2, 2)),
              ElementsAre("memory.recompute = \"norms\"", "parallel.shard = \"optimizer\"",
                          "memory.recompute = \"attention\"", "parallel.shard = \"gradients\"",
                          "memory.recompute = \"full\"", "parallel.shard = \"parameters\"",
                          "memory.offload_layers = 4", "memory.offload_layers = 8",
                          "parallel.shard = \"optimizer\", memory.recompute = \"full\"",
                          "memory.recompute = \"full\", parallel.shard = \"parameters\"",
                          "memory.recompute = \"full\", parallel.shard = \"parameters\", "
                          "memory.offload_layers = 8"));
}

// Where no row is lost by it.
TEST(SmallerSettings, HaveLessRoomForRowsOfExperts) {
  RunConfig config = config_of(1, 4, 4);
  EXPECT_THAT(settings_of(config), Not(Contains(HasSubstr("moe.capacity"))));
  config.parallel.expert = 4;
  const std::vector<std::string> texts = settings_of(config);
  EXPECT_EQ(texts.front(), "moe.capacity = 1.5");
  EXPECT_THAT(texts, Contains("memory.recompute = \"compute\""));
  EXPECT_THAT(texts.back(), StartsWith("moe.capacity = 1.5, "));
  config.moe.on_overflow = "drop";
  EXPECT_THAT(settings_of(config), Not(Contains(HasSubstr("moe.capacity"))));
  config.moe.on_overflow = "rerun";
  config.moe.capacity = 2;
  EXPECT_THAT(settings_of(config), Not(Contains(HasSubstr("moe.capacity"))));
  config.moe.capacity = 0;
  config.moe.expert_capacity = 1;
  EXPECT_THAT(settings_of(config), Not(Contains(HasSubstr("moe.capacity"))));
}

TEST(SmallerSettings, AreOnlyThoseThatAreNotSetYet) {
  RunConfig config = config_of(1, 4, 2);
  config.memory.recompute = "attention";
  config.memory.offload_layers = 8;
  config.parallel.shard = "parameters";
  EXPECT_THAT(settings_of(config),
              ElementsAre("memory.recompute = \"full\"", "train.global_batch = 2"));
  config.memory.recompute = "full";
  config.train.global_batch = 2;
  EXPECT_THAT(settings_of(config), IsEmpty());
}

TEST(SmallerSettings, OfManyMicrobatchesAreTheNearestAndTheSmallest) {
  const std::vector<std::string> texts = settings_of(config_of(720, 720, 1));
  for (const char* size : {"360", "240", "180", "144", "1"}) {
    EXPECT_THAT(texts, ::testing::Contains("train.microbatch = " + std::string(size)));
  }
  EXPECT_THAT(texts, Not(::testing::Contains("train.microbatch = 120")));
  EXPECT_LE(texts.size(), kMaxSmallerSettings);
}

TEST(SmallerSettings, FirstThatFitsIsFound) {
  const RunConfig config = config_of(4, 4);
  std::vector<int64_t> asked;
  const auto fitting = find_fitting_setting(config, 8, [&](const RunConfig& changed) {
    asked.push_back(changed.train.microbatch);
    return changed.train.microbatch <= 2 ? std::optional<int64_t>(100 * changed.train.microbatch)
                                         : std::nullopt;
  });
  ASSERT_TRUE(fitting.has_value());
  EXPECT_EQ(describe_changes(fitting->changes), "train.microbatch = 2");
  EXPECT_EQ(fitting->needed_bytes, 200);
  EXPECT_THAT(asked, ElementsAre(4, 4, 2));
  EXPECT_FALSE(find_fitting_setting(config, 8, [](const RunConfig&) {
                 return std::optional<int64_t>();
               }).has_value());
}

}  // namespace
}  // namespace braid
