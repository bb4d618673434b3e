#include "config/suggest.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(Suggest, KnowsItsSections) {
  EXPECT_TRUE(is_section("train"));
  EXPECT_FALSE(is_section("trian"));
  EXPECT_FALSE(is_section(""));
}

TEST(Suggest, NamesTheNearestSection) {
  EXPECT_EQ(suggest_section("Optimiser"), "did you mean [optimizer]?");
  EXPECT_EQ(suggest_section("banana"),
            "sections are model, train, optimizer, parallel, moe, lora, preference, memory, "
            "overlap, data, "
            "eval, "
            "checkpoint, "
            "logging, runtime, links");
}

TEST(Suggest, PrefersKeysOfTheSameSection) {
  EXPECT_EQ(suggest_key("eval", "intervall"), "did you mean eval.interval?");
  EXPECT_EQ(suggest_key("logging", "intervall"), "did you mean logging.interval?");
  EXPECT_EQ(suggest_key("eval", "clip-norm"), "did you mean optimizer.clip_norm?");
  EXPECT_EQ(suggest_key("eval", "banana"), "keys of [eval] are interval, batches");
}

TEST(Suggest, FindsKeysWithoutASection) {
  EXPECT_EQ(suggest_key_without_section("vocab"), "did you mean model.vocabulary?");
  EXPECT_EQ(suggest_key_without_section("warmup_step"), "did you mean optimizer.warmup_steps?");
}

}  // namespace
}  // namespace braid
