#include "plan/optimizer_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/load.h"
#include "config/validate.h"
#include "plan/describe_layout.h"
#include "plan/run_spec.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

RunSpec spec_of(std::vector<std::string> overrides) {
  for (const char* const key :
       {"model.layers=2", "model.width=32", "model.heads=4", "model.kv_heads=2", "model.ffn=64",
        "train.sequence=16", "logging.run_folder=none"}) {
    overrides.emplace_back(key);
  }
  const RunConfig config = parse_config("", "optimizer", overrides);
  validate(config);
  return resolve_run(resolved(config), 50);
}

std::string error_of(const std::vector<std::string>& overrides) {
  return message_of<ConfigError>([&] { spec_of(overrides); });
}

TEST(OptimizerSetup, TurnsNamesIntoOptions) {
  const RunSpec run = spec_of({"optimizer.name=muon", "optimizer.muon_scale=original",
                               "optimizer.muon_dtype=float32", "optimizer.muon_steps=7"});
  EXPECT_EQ(run.optimizer.kind, OptimizerKind::kMuon);
  EXPECT_EQ(run.optimizer.muon.scale, MuonScale::kOriginal);
  EXPECT_EQ(run.optimizer.muon.dtype, DType::kF32);
  EXPECT_EQ(run.optimizer.muon.num_steps, 7);
  EXPECT_TRUE(run.parallel.muon);
  EXPECT_FALSE(spec_of({"optimizer.name=lion"}).parallel.muon);
}

TEST(OptimizerSetup, ReadsPatternsWithFactors) {
  const RunSpec run = spec_of(
      {R"(optimizer.rates=["embedding.*=0.5", "*.qkv.* = 2e-1"])", R"(optimizer.no_decay=["*"])"});
  EXPECT_THAT(run.parallel.groups.rates,
              ElementsAre(Pair("embedding.*", 0.5), Pair("*.qkv.*", 0.2)));
  EXPECT_THAT(describe_layout(run), HasSubstr("\ngroups    "));
}

TEST(OptimizerSetup, RefusesWhatIsNoPatternWithAFactor) {
  for (const std::string entry : {"embedding.*", "embedding.*=", "=0.5", "*=-1", "*=1x", "*=nan"}) {
    EXPECT_THAT(error_of({"optimizer.rates=[\"" + entry + "\"]"}),
                StartsWith("optimizer.rates = \"" + entry +
                           "\": must be a pattern, an equals sign and a number, at least 0"));
  }
  EXPECT_THAT(error_of({R"(optimizer.no_decay=["embeding.*"])"}),
              AllOf(HasSubstr("\"embeding.*\" fits no parameter; names are like "),
                    HasSubstr("\"embedding.tokens\"")));
}

TEST(OptimizerSetup, MuonIsForMatricesOfWhichNoRankHoldsACopy) {
  EXPECT_THAT(error_of({"optimizer.name=muon", "parallel.ranks=4", "parallel.tensor=4"}),
              AllOf(StartsWith("optimizer.name = \"muon\" with parallel.tensor = 4: "
                               "\"layers.0.attention.qkv.weight\" has 2 heads"),
                    HasSubstr("set parallel.tensor = 2")));
  EXPECT_THAT(error_of({"optimizer.name=muon", "lora.rank=4", "lora.base=somewhere"}),
              StartsWith("optimizer.name = \"muon\" with lora.rank = 4: "));
}

}  // namespace
}  // namespace braid
