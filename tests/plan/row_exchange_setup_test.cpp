#include "plan/row_exchange_setup.h"

#include <gtest/gtest.h>

#include "sim/device_spec.h"

namespace braid {
namespace {

RunConfig config_of(int64_t ranks, int64_t expert, int64_t expert_tensor = 1) {
  RunConfig config;
  config.parallel.ranks = ranks;
  config.parallel.expert = expert;
  config.parallel.expert_tensor = expert_tensor;
  return config;
}

std::string exchange_of(const RunConfig& config, int64_t ranks_per_host) {
  return with_exchange(config, ranks_per_host).moe.exchange;
}

TEST(RowExchangeSetup, TakesBlocksIfAGroupSpansHosts) {
  EXPECT_EQ(exchange_of(config_of(16, 16), 8), "blocks");
  EXPECT_EQ(exchange_of(config_of(16, 8), 8), "direct");
  EXPECT_EQ(exchange_of(config_of(16, 8, 2), 8), "blocks");
  EXPECT_EQ(exchange_of(config_of(16, 4, 2), 8), "direct");
  EXPECT_EQ(exchange_of(config_of(12, 3), 4), "blocks") << "ranks 3, 4 and 5";
  EXPECT_EQ(exchange_of(config_of(6, 6), 8), "direct") << "a part of a host";
  EXPECT_EQ(exchange_of(config_of(8, 2), 1), "blocks");
}

TEST(RowExchangeSetup, LeavesWhatIsGivenAndRanksWithAllExperts) {
  RunConfig config = config_of(16, 16);
  config.moe.exchange = "direct";
  EXPECT_EQ(exchange_of(config, 8), "direct");
  config = config_of(4, 4);
  config.moe.exchange = "blocks";
  EXPECT_EQ(exchange_of(config, 8), "blocks");
  EXPECT_EQ(exchange_of(config_of(16, 1), 8), "auto");
}

TEST(RowExchangeSetup, GoesByTheClusterOfTheCosts) {
  const Cluster gpus = parse_cluster("h200x16");
  const Cluster cpu = cluster_for_ranks(*find_device("cpu"), 16);
  const RunConfig config = config_of(16, 16);
  EXPECT_TRUE(exchanges_blocks(config, &gpus));
  EXPECT_FALSE(exchanges_blocks(config, &cpu)) << "CPUs send the rows that there are";
  EXPECT_FALSE(exchanges_blocks(config, nullptr));
  RunConfig forced = config_of(16, 1);
  forced.moe.exchange = "blocks";
  EXPECT_FALSE(exchanges_blocks(forced, &gpus)) << "nothing is exchanged";
  forced.parallel.expert = 2;
  EXPECT_TRUE(exchanges_blocks(forced, &cpu));
}

TEST(RowExchangeSetup, OtherSoftwareSendsTheRowsThatThereAre) {
  EXPECT_EQ(with_exact_exchange(config_of(16, 16)).moe.exchange, "direct");
  EXPECT_EQ(with_exact_exchange(config_of(16, 1)).moe.exchange, "auto");
}

}  // namespace
}  // namespace braid
