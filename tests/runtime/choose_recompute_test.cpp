#include "runtime/choose_recompute.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/errors.h"
#include "config/reference.h"
#include "plan/run_spec.h"
#include "runtime/choose_settings.h"
#include "support/memory_runs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kLayers = 4;

RunConfig with_recompute(RunConfig config, const std::string& policy, int64_t layers) {
  config.memory.recompute = policy;
  config.memory.recompute_layers = layers == kLayers ? 0 : layers;
  return config;
}

/// As much as makes a run of these needs fit.
int64_t enough_for(int64_t needed) {
  return needed + needed / 100;
}

TEST(ChooseRecompute, LeavesWhatIsSaidAlone) {
  const RunConfig config = memory_config({"memory.recompute=norms", "memory.recompute_layers=2"});
  std::string text;
  const RunConfig chosen = choose_recompute(resolve_run(config, kMemoryVocabulary), gpu_of(1),
                                            [&](std::string_view line) { text += line; })
                               .config;
  EXPECT_EQ(to_toml(chosen), to_toml(config));
  EXPECT_EQ(text, "");
}

TEST(ChooseRecompute, MakesNothingAgainWhereEverythingFits) {
  std::string text;
  const RunConfig chosen =
      choose_recompute(resolve_run(memory_config({"memory.recompute=auto"}), kMemoryVocabulary),
                       gpu_of(int64_t{1} << 40), [&](std::string_view line) { text += line; })
          .config;
  EXPECT_EQ(chosen.memory.recompute, "none");
  EXPECT_THAT(text, AllOf(StartsWith("recompute none: everything fits, "), HasSubstr("1.00 TiB")));
}

void expect_fewest_layers(const RunConfig& config) {
  const RunConfig plain = with_recompute(config, "none", 0);
  for (const char* const policy : {"norms", "full"}) {
    for (const int64_t layers : {int64_t{1}, int64_t{2}, kLayers}) {
      const int64_t needed = needed_bytes(with_recompute(plain, policy, layers));
      const RunConfig chosen =
          choose_recompute(resolve_run(config, kMemoryVocabulary), gpu_of(enough_for(needed)))
              .config;
      const std::string& found = chosen.memory.recompute;
      const int64_t found_layers =
          chosen.memory.recompute_layers == 0 ? kLayers : chosen.memory.recompute_layers;
      EXPECT_LE(needed_bytes(chosen), enough_for(needed)) << policy << layers;
      EXPECT_GT(
          needed_bytes(with_recompute(plain, found_layers == 1 ? "none" : found, found_layers - 1)),
          needed)
          << policy << layers << " found " << found << found_layers;
    }
  }
}

TEST(ChooseRecompute, TakesTheFewestLayersThatFit) {
  expect_fewest_layers(memory_config({"memory.recompute=auto"}));
}

// Layers that keep few activations come before those that keep most.
TEST(ChooseRecompute, TakesTheFewestOfLayersThatDiffer) {
  expect_fewest_layers(
      memory_config({"memory.recompute=auto", "model.pattern=attention*2 attention+mlp*2"}));
}

TEST(ChooseRecompute, TakesTheCheapestPolicyThatFits) {
  const RunConfig config = memory_config({"memory.recompute=auto"});
  const auto choose_for = [&](const char* policy, int64_t layers) {
    const int64_t needed = needed_bytes(with_recompute(config, policy, layers));
    return choose_recompute(resolve_run(config, kMemoryVocabulary), gpu_of(enough_for(needed)))
        .config.memory.recompute;
  };
  EXPECT_EQ(choose_for("norms", kLayers), "norms");
  EXPECT_EQ(choose_for("full", kLayers), "full");
}

TEST(ChooseRecompute, WhereNothingFitsLeavesTheRefusalToTheCheck) {
  std::string text;
  const RunConfig chosen =
      choose_recompute(resolve_run(memory_config({"memory.recompute=auto"}), kMemoryVocabulary),
                       gpu_of(1), [&](std::string_view line) { text += line; })
          .config;
  EXPECT_EQ(chosen.memory.recompute, "full");
  EXPECT_EQ(chosen.memory.recompute_layers, 0);
  EXPECT_THAT(text, AllOf(StartsWith("recompute full in 4 of 4 layers: "),
                          HasSubstr("; no policy fits\n")));
}

/// By rank: tasks of a step that do again what the forward did.
std::vector<int64_t> repeated_tasks(const RunPlan& plan) {
  std::vector<int64_t> counts;
  for (const RankPlan& rank : plan.ranks) {
    const auto pass = std::ranges::find(rank.passes, "recompute", &PassRecord::name);
    counts.push_back(pass == rank.passes.end() ? 0 : pass->report.num_changes);
  }
  return counts;
}

// The first stage keeps four microbatches, the next one three: the first alone repeats its layers,
// and weight gradients that wait for the end of the step do not take the room of the others.
TEST(ChooseRecompute, StagesOfAPipelineThatHaveRoomRepeatNothing) {
  const RunConfig config =
      memory_config({"memory.recompute=auto", "parallel.ranks=4", "parallel.pipeline=4",
                     "parallel.schedule=1f1b", "parallel.pipeline_layout=even", "model.layers=8",
                     "train.global_batch=32", "overlap.comm_engine=copy"});
  const RunConfig plain = with_recompute(config, "none", 0);
  const int64_t limit =
      std::midpoint(needed_bytes(plain), needed_bytes(with_recompute(plain, "full", 2)));
  EXPECT_THROW(check_memory(memory_plan_of(plain), gpu_of(limit)), ConfigError);
  const RunConfig chosen =
      choose_recompute(resolve_run(config, kMemoryVocabulary), gpu_of(limit)).config;
  const RunPlan plan = memory_plan_of(chosen);
  EXPECT_NO_THROW(check_memory(plan, gpu_of(limit)));
  EXPECT_THAT(repeated_tasks(plan), ElementsAre(Gt(0), 0, 0, 0));
}

// Trials are planned quickly, which finds offsets for some bytes more than a run does.
TEST(ChooseRecompute, CountsWhatARunTakes) {
  const RunConfig config = memory_config({"memory.recompute=auto", "model.layers=20"});
  const RunConfig plain = with_recompute(config, "none", 0);
  const RunPlan quick = plan_run(resolve_run(plain, kMemoryVocabulary), {.verify = false});
  const int64_t needed = needed_bytes(plain);
  const RunMemory memory = gpu_of(needed + needed / 127 + 1);  // 1/128 of it stays free
  const int64_t needed_quickly = memory_uses(quick, memory).front().needs.bytes();
  ASSERT_GT(needed_quickly, needed) << "a run whose quick plan is as small tests nothing";
  EXPECT_EQ(
      choose_recompute(resolve_run(config, kMemoryVocabulary), memory).config.memory.recompute,
      "none");
  const RunMemory less = gpu_of(memory.gpu->free_bytes - 1024);
  EXPECT_NE(choose_recompute(resolve_run(config, kMemoryVocabulary), less).config.memory.recompute,
            "none");
}

TEST(ChooseSettings, ChoosesRecomputeThatFitsBesideTheOverlapThatWasFound) {
  const RunConfig config =
      memory_config({"memory.recompute=auto", "overlap.cost=h200x2", "parallel.ranks=2",
                     "parallel.shard=parameters", "runtime.device=cuda"});
  const int64_t needed = needed_bytes(with_recompute(config, "full", kLayers));
  const RunMemory memory = gpu_of(enough_for(needed) + (int64_t{8} << 20));
  std::string text;
  const RunConfig chosen = choose_settings(resolve_run(config, kMemoryVocabulary), memory,
                                           {.print = [&](std::string_view line) { text += line; }})
                               .config;
  EXPECT_EQ(chosen.overlap.mode, "manual");
  EXPECT_NE(chosen.memory.recompute, "auto");
  EXPECT_LE(needed_bytes(chosen), memory.gpu->free_bytes);
  EXPECT_THAT(text, AllOf(HasSubstr("auto overlap: "), HasSubstr("recompute ")));
}

TEST(ChooseSettings, SaysWhereTheMemoryIsNotKnown) {
  std::string text;
  const RunConfig chosen =
      choose_settings(resolve_run(memory_config({"memory.recompute=auto"}), kMemoryVocabulary),
                      std::nullopt, {.print = [&](std::string_view line) { text += line; }})
          .config;
  EXPECT_EQ(chosen.memory.recompute, "auto");
  EXPECT_THAT(text, StartsWith("recompute auto: the memory of a device is not known here"));
}

}  // namespace
}  // namespace braid
