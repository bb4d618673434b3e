#include "plan/most_streams.h"

#include <gtest/gtest.h>

#include "config/validate.h"
#include "support/emulated_layouts.h"

namespace braid {
namespace {

RunConfig ranks(int64_t number) {
  RunConfig config = small_planned_run();
  config.parallel.ranks = number;
  return config;
}

size_t streams_of(RunConfig config) {
  validate(config);
  return most_streams(resolved(std::move(config)));
}

// That no program has more is tested with random settings (random_settings_test.cpp).
TEST(MostStreams, AreOneForComputeAndOneByKindOfGroup) {
  EXPECT_EQ(streams_of(ranks(1)), 1u);
  RunConfig config = ranks(8);
  EXPECT_EQ(streams_of(config), 3u);  // data, world
  config.parallel.tensor = 2;
  EXPECT_EQ(streams_of(config), 4u);
  config.parallel.context = 2;
  EXPECT_EQ(streams_of(config), 5u);
}

TEST(MostStreams, AreMoreWithAPipelineAndCopies) {
  RunConfig config = ranks(2);
  config.model.tied_embeddings = false;
  config.parallel.pipeline = 2;
  EXPECT_EQ(streams_of(config), 6u);
  config.model.mtp_depth = 1;  // the embedding is on both stages
  EXPECT_EQ(streams_of(config), 7u);
  config.model.mtp_depth = 0;
  config.parallel.virtual_stages = 2;
  config.parallel.schedule = "zb-v";
  EXPECT_EQ(streams_of(config), 10u);
  config = ranks(1);
  config.memory.offload_layers = 2;
  EXPECT_EQ(streams_of(config), 3u);
}

}  // namespace
}  // namespace braid
