#include "plan/row_exchange_setup.h"

#include <gtest/gtest.h>

#include "base/errors.h"
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

TEST(RowExchangeSetup, GoesByTheHostsOfAGroup) {
  EXPECT_EQ(exchange_of(config_of(16, 16), 8), "hosts");
  EXPECT_EQ(exchange_of(config_of(16, 8), 8), "direct");
  EXPECT_EQ(exchange_of(config_of(16, 8, 2), 8), "hosts");
  EXPECT_EQ(exchange_of(config_of(16, 1, 16), 8), "blocks") << "hosts without whole experts";
  EXPECT_EQ(exchange_of(config_of(16, 4, 2), 8), "direct");
  EXPECT_EQ(exchange_of(config_of(12, 3), 4), "blocks") << "ranks 3, 4 and 5";
  EXPECT_EQ(exchange_of(config_of(6, 6), 8), "direct") << "a part of a host";
  EXPECT_EQ(exchange_of(config_of(8, 2), 1), "blocks");
  RunConfig drops = config_of(16, 16);
  drops.moe.expert_capacity = 1;
  EXPECT_EQ(exchange_of(drops, 8), "blocks");
}

TEST(RowExchangeSetup, CountsHosts) {
  EXPECT_EQ(with_exchange(config_of(64, 32), 8).moe.exchange_hosts, 4);
  EXPECT_EQ(with_exchange(config_of(64, 8, 4), 8).moe.exchange_hosts, 4);
  EXPECT_EQ(with_exchange(config_of(64, 8), 8).moe.exchange_hosts, 0);
  RunConfig config = config_of(4, 4);
  config.moe.exchange = "hosts";
  config.moe.exchange_hosts = 2;
  EXPECT_EQ(with_exchange(config, 8).moe.exchange_hosts, 2) << "as it is given";
  EXPECT_EQ(exchange_setup(config, nullptr).hosts, 2);
  config.moe.exchange_hosts = 0;
  const auto refused = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused([&] { with_exchange(config, 8); }),
            "moe.exchange = \"hosts\": the 4 ranks of a group (parallel.expert * "
            "parallel.expert_tensor) are not all GPUs of several hosts of 8; set moe.exchange = "
            "\"auto\"");
  EXPECT_EQ(refused([&] { exchange_setup(config, nullptr); }),
            "moe.exchange = \"hosts\": moe.exchange_hosts is 0, and nothing says how many hosts "
            "there are; set moe.exchange_hosts");
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
  EXPECT_EQ(exchange_setup(config, &gpus).hosts, 2);
  EXPECT_EQ(exchange_setup(config, &cpu).hosts, 1) << "CPUs send the rows that there are";
  EXPECT_EQ(exchange_setup(config, nullptr).hosts, 1);
  EXPECT_FALSE(exchange_setup(config, &gpus).by_blocks);
  RunConfig forced = config_of(16, 1);
  forced.moe.exchange = "blocks";
  EXPECT_FALSE(exchange_setup(forced, &gpus).by_blocks) << "nothing is exchanged";
  forced.parallel.expert = 2;
  EXPECT_TRUE(exchange_setup(forced, &cpu).by_blocks);
}

TEST(RowExchangeSetup, OtherSoftwareSendsTheRowsThatThereAre) {
  EXPECT_EQ(with_exact_exchange(config_of(16, 16)).moe.exchange, "direct");
  EXPECT_EQ(with_exact_exchange(config_of(16, 1)).moe.exchange, "auto");
}

}  // namespace
}  // namespace braid
