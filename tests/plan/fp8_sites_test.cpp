#include "plan/fp8_sites.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/load.h"
#include "config/validate.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

RunSpec spec_of(std::vector<std::string> overrides) {
  for (const char* const key :
       {"model.layers=3", "model.width=128", "model.heads=4", "model.kv_heads=2", "model.ffn=256",
        "train.sequence=128", "train.microbatch=2", "train.dtype=bfloat16",
        "logging.run_folder=none"}) {
    overrides.emplace_back(key);
  }
  const RunConfig config = parse_config("", "fp8", overrides);
  validate(config);
  return resolve_run(resolved(config), 50);
}

TEST(Fp8Sites, AreTheProductsOfAllLayers) {
  const auto sites = fp8_sites(spec_of({"train.fp8=block"}));
  ASSERT_EQ(sites.size(), 3u * 4);
  EXPECT_EQ(sites[0].site, "layers.0.attention.qkv");
  EXPECT_EQ(sites[0].rows, 256);
  EXPECT_EQ(sites[0].features, 256);
  EXPECT_EQ(sites[0].depth, 128);
  EXPECT_TRUE(fp8_sites(spec_of({})).empty());
}

TEST(Fp8Sites, AreThoseOfATensorRank) {
  const auto sites =
      fp8_sites(spec_of({"train.fp8=block", "parallel.ranks=2", "parallel.tensor=2"}));
  EXPECT_EQ(sites[0].features, 128);
  EXPECT_EQ(sites[1].reason, "64 inputs: no multiple of 128");
}

TEST(Fp8Sites, AreDescribedInOneLineForEqualLayers) {
  const std::string text =
      describe_fp8(spec_of({"train.fp8=tensor", "train.fp8_filter=[\"layers.0.*\"]"}));
  EXPECT_THAT(text, HasSubstr("one scale for each matrix; all else in bfloat16"));
  EXPECT_THAT(text, HasSubstr("2 layers  f8e4m3, gradients f8e5m2\n"));
  EXPECT_THAT(text, HasSubstr("1 layers  bfloat16 (kept by \"layers.0.*\")\n"));
  EXPECT_THAT(describe_fp8(spec_of({"train.fp8=mxfp8", "train.fp8_weight_blocks=squares"})),
              HasSubstr("scales of 1 x 32 elements, 32 x 32 of a weight (E8M0)"));
  EXPECT_EQ(describe_fp8(spec_of({})), "");
}

}  // namespace
}  // namespace braid
