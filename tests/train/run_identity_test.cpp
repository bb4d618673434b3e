#include "train/run_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/random_value.h"
#include "config/validate.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

RunIdentity small_identity() {
  return {.config = small_config(),
          .facts = {{std::string(kDataFact), "12 documents"},
                    {std::string(kTokenizerFact), "bytes"},
                    {std::string(kSampleOrderFact), "one epoch"},
                    {std::string(kBuildFact), "b1"}}};
}

TEST(CompareRuns, FindsNothingInTheSameRun) {
  const RunChanges same = compare_runs(small_identity(), small_identity(), {});
  EXPECT_THAT(same.lines, IsEmpty());
  EXPECT_THAT(same.refused, IsEmpty());
}

/// Another value of a key, within its limits; the seed makes them repeat.
RunConfig with_another_value(const Field& field, const RunConfig& config, std::mt19937_64& random) {
  RunConfig changed = config;
  while (value_of(field, changed) == value_of(field, config)) {
    set_value(field, changed, std::visit(RandomValue(field.limits, random), empty_value(field)));
  }
  return changed;
}

TEST(CompareRuns, NoRandomChangeOfAKeyPassesWithoutALine) {
  std::mt19937_64 random(7);
  const RunIdentity before = small_identity();
  for (int i = 0; i < 100; ++i) {
    const Field& field = config_fields()[random() % config_fields().size()];
    const bool is_fixed = field.limits.allowed.size() == 1;
    if (is_fixed || field.limits.minimum == field.limits.maximum) {
      continue;
    }
    RunIdentity after = before;
    after.config = with_another_value(field, before.config, random);
    const RunChanges changes = compare_runs(before, after, {});
    EXPECT_THAT(changes.lines, ElementsAre(StartsWith(full_name(field) + " = ")));
    const bool is_refused = on_resume(field) == OnResume::kRefused;
    EXPECT_EQ(changes.refused.size(), is_refused ? 1u : 0u) << full_name(field);
    EXPECT_EQ(changes.keys.size(), is_refused ? 1u : 0u) << full_name(field);
    const std::vector<std::string> named{full_name(field)};
    EXPECT_THAT(compare_runs(before, after, named).refused, IsEmpty());
  }
}

TEST(CompareRuns, DataMayMoveButNotChange) {
  const RunIdentity before = small_identity();
  RunIdentity after = before;
  after.config.data.train = "elsewhere";
  EXPECT_THAT(compare_runs(before, after, {}).refused, IsEmpty());
  after.facts[std::string(kDataFact)] = "13 documents";
  EXPECT_THAT(compare_runs(before, after, {}).refused,
              ElementsAre("content of the training data: 12 documents -> 13 documents"));
  EXPECT_THAT(compare_runs(before, after, {}).keys, ElementsAre("data.train"));
  EXPECT_THAT(compare_runs(before, after, std::vector<std::string>{"data.train"}).refused,
              IsEmpty());
  EXPECT_THAT(compare_runs(before, after, std::vector<std::string>{"data.tokenizer"}).refused,
              testing::SizeIs(1));  // which has not changed
}

// Other data have another order, which need not be named as well.
TEST(CompareRuns, ANamedKeyAllowsWhatFollowsFromIt) {
  const RunIdentity before = small_identity();
  RunIdentity after = before;
  after.facts[std::string(kTokenizerFact)] = "300 ids";
  after.facts[std::string(kDataFact)] = "13 documents";
  after.facts[std::string(kSampleOrderFact)] = "two epochs";
  const RunChanges changes = compare_runs(before, after, {});
  EXPECT_THAT(changes.refused, testing::SizeIs(3));
  EXPECT_THAT(changes.keys, ElementsAre("data.tokenizer"));
  const RunChanges allowed = compare_runs(before, after, changes.keys);
  EXPECT_THAT(allowed.refused, IsEmpty());
  EXPECT_EQ(allowed.lines, changes.lines);
}

TEST(CompareRuns, StepsMayChangeUnlessThatChangesTheOrderOfSamples) {
  const RunIdentity before = small_identity();
  RunIdentity after = before;
  after.config.train.steps = 40;
  EXPECT_THAT(compare_runs(before, after, {}).refused, IsEmpty());
  after.facts[std::string(kSampleOrderFact)] = "two epochs";
  EXPECT_THAT(compare_runs(before, after, {}).keys, ElementsAre("train.steps"));
  EXPECT_THAT(compare_runs(before, after, std::vector<std::string>{"train.steps"}).refused,
              IsEmpty());
}

TEST(CompareRuns, AnotherBuildIsSaid) {
  const RunIdentity before = small_identity();
  RunIdentity after = before;
  after.facts[std::string(kBuildFact)] = "b2";
  const RunChanges changes = compare_runs(before, after, {});
  EXPECT_THAT(changes.lines, ElementsAre("build of braid: b1 -> b2"));
  EXPECT_THAT(changes.refused, IsEmpty());
}

// As of earlier versions: only names are left to compare.
TEST(CompareRuns, WithoutFactsTheNamesOfDataCount) {
  RunIdentity before = small_identity();
  const RunIdentity same = before;
  before.facts.clear();
  EXPECT_THAT(compare_runs(before, same, {}).lines,
              ElementsAre(HasSubstr("records no identity: data and tokenizer cannot be compared")));
  EXPECT_THAT(compare_runs(before, same, {}).refused, IsEmpty());
  RunIdentity moved = same;
  moved.config.data.train = "elsewhere";
  EXPECT_THAT(compare_runs(before, moved, {}).keys, ElementsAre("data.train"));
}

TEST(CompareRuns, ModelsAreComparedByWhatTheyAre) {
  RunConfig config = resolved(small_config());
  const RunIdentity before = identity_of(resolve_run(config, 257), {});
  config.model.family = "llama";
  config.model.head_size = 8;  // = width / heads
  config.model.vocabulary = 257;
  const RunIdentity same = identity_of(resolve_run(config, 257), {});
  EXPECT_EQ(same.config.model, before.config.model);
  config.model.qkv_bias = true;
  const RunIdentity other = identity_of(resolve_run(config, 257), {});
  EXPECT_THAT(compare_runs(before, other, {}).keys, ElementsAre("model.qkv_bias"));
}

TEST(CheckAllowedChanges, KnowsTheKeys) {
  EXPECT_NO_THROW(check_allowed_changes(std::vector<std::string>{"data.train", "train.seed"}));
  const auto message = [](const std::string& name) {
    return message_of<ConfigError>([&] { check_allowed_changes(std::vector<std::string>{name}); });
  };
  EXPECT_EQ(message("train.sed"),
            "--allow-change \"train.sed\": there is no such key; did you mean train.seed?");
  EXPECT_THAT(message("seed"),
              HasSubstr("\"seed\": there is no such key; did you mean train.seed"));
}

}  // namespace
}  // namespace braid
