#include "runtime/choose_recompute.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "config/load.h"
#include "config/reference.h"
#include "config/validate.h"
#include "plan/run_plan.h"
#include "runtime/choose_settings.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kVocabulary = 257;
constexpr int64_t kLayers = 5;

RunConfig config_with(const std::vector<std::string>& settings) {
  std::vector<std::string> overrides = {"model.layers=5",       "model.width=128",
                                        "model.heads=4",        "train.sequence=1024",
                                        "train.microbatch=4",   "train.global_batch=8",
                                        "train.dtype=bfloat16", "logging.run_folder=unused"};
  overrides.insert(overrides.end(), settings.begin(), settings.end());
  const RunConfig config = parse_config("", "the test", overrides);
  validate(config);
  return resolved(config);
}

RunMemory gpu_of(int64_t free_bytes) {
  return {.gpu = GpuMemory{.name = "the GPU of the test", .free_bytes = free_bytes},
          .host_bytes = std::nullopt};
}

RunConfig with_recompute(RunConfig config, const std::string& policy, int64_t layers) {
  config.memory.recompute = policy;
  config.memory.recompute_layers = layers == kLayers ? 0 : layers;
  return config;
}

int64_t needed_bytes(const RunConfig& config) {
  return memory_uses(plan_run(config, kVocabulary), config, gpu_of(0)).front().needs.bytes();
}

/// As much as makes a run of these needs fit.
int64_t enough_for(int64_t needed) {
  return needed + needed / 100;
}

TEST(ChooseRecompute, LeavesWhatIsSaidAlone) {
  const RunConfig config = config_with({"memory.recompute=norms", "memory.recompute_layers=2"});
  std::string text;
  const RunConfig chosen = choose_recompute(config, kVocabulary, gpu_of(1),
                                            [&](std::string_view line) { text += line; });
  EXPECT_EQ(to_toml(chosen), to_toml(config));
  EXPECT_EQ(text, "");
}

TEST(ChooseRecompute, MakesNothingAgainWhereEverythingFits) {
  std::string text;
  const RunConfig chosen =
      choose_recompute(config_with({"memory.recompute=auto"}), kVocabulary,
                       gpu_of(int64_t{1} << 40), [&](std::string_view line) { text += line; });
  EXPECT_EQ(chosen.memory.recompute, "none");
  EXPECT_THAT(text, AllOf(StartsWith("recompute none: everything fits, "), HasSubstr("1.00 TiB")));
}

TEST(ChooseRecompute, TakesTheFewestLayersThatFit) {
  const RunConfig config = config_with({"memory.recompute=auto"});
  const RunConfig plain = with_recompute(config, "none", 0);
  for (const char* const policy : {"norms", "full"}) {
    for (const int64_t layers : {int64_t{1}, int64_t{3}, kLayers}) {
      const int64_t needed = needed_bytes(with_recompute(plain, policy, layers));
      const RunConfig chosen = choose_recompute(config, kVocabulary, gpu_of(enough_for(needed)));
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

TEST(ChooseRecompute, TakesTheCheapestPolicyThatFits) {
  const RunConfig config = config_with({"memory.recompute=auto"});
  const auto choose_for = [&](const char* policy, int64_t layers) {
    const int64_t needed = needed_bytes(with_recompute(config, policy, layers));
    return choose_recompute(config, kVocabulary, gpu_of(enough_for(needed))).memory.recompute;
  };
  EXPECT_EQ(choose_for("norms", kLayers), "norms");
  EXPECT_EQ(choose_for("full", kLayers), "full");
}

TEST(ChooseRecompute, WhereNothingFitsLeavesTheRefusalToTheCheck) {
  std::string text;
  const RunConfig chosen =
      choose_recompute(config_with({"memory.recompute=auto"}), kVocabulary, gpu_of(1),
                       [&](std::string_view line) { text += line; });
  EXPECT_EQ(chosen.memory.recompute, "full");
  EXPECT_EQ(chosen.memory.recompute_layers, 0);
  EXPECT_THAT(text, AllOf(StartsWith("recompute full in 5 of 5 layers: "),
                          HasSubstr("; no policy fits\n")));
}

TEST(ChooseSettings, ChoosesRecomputeThatFitsBesideTheOverlapThatWasFound) {
  const RunConfig config =
      config_with({"memory.recompute=auto", "overlap.cost=h200x2", "parallel.ranks=2",
                   "parallel.shard=parameters", "runtime.device=cuda"});
  const int64_t needed = needed_bytes(with_recompute(config, "full", kLayers));
  const RunMemory memory = gpu_of(enough_for(needed) + (int64_t{8} << 20));
  std::string text;
  const RunConfig chosen = choose_settings(config, kVocabulary, memory,
                                           {.print = [&](std::string_view line) { text += line; }});
  EXPECT_EQ(chosen.overlap.mode, "manual");
  EXPECT_NE(chosen.memory.recompute, "auto");
  EXPECT_LE(needed_bytes(chosen), memory.gpu->free_bytes);
  EXPECT_THAT(text, AllOf(HasSubstr("auto overlap: "), HasSubstr("recompute ")));
}

TEST(ChooseSettings, SaysWhereTheMemoryIsNotKnown) {
  std::string text;
  const RunConfig chosen =
      choose_settings(config_with({"memory.recompute=auto"}), kVocabulary, std::nullopt,
                      {.print = [&](std::string_view line) { text += line; }});
  EXPECT_EQ(chosen.memory.recompute, "auto");
  EXPECT_THAT(text, StartsWith("recompute auto: the memory of a device is not known here"));
}

}  // namespace
}  // namespace braid
