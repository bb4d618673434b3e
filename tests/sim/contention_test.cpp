#include "sim/contention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/expect_error.h"
#include "sim/fixed_costs.h"

namespace braid {
namespace {

TEST(RateParts, IsNeverNothing) {
  EXPECT_EQ(rate_parts(1), kFullRate);
  EXPECT_EQ(rate_parts(0.5), kFullRate / 2);
  EXPECT_EQ(rate_parts(1e-9), 1);
  EXPECT_THROW(rate_parts(0), InternalError);
  EXPECT_THROW(rate_parts(1.5), InternalError);
}

TEST(ContentionTable, LossIsInProportionToSmsUpToTheMeasuredOnes) {
  const ContentionTable table({.gemm_and_sm_comm = {.compute = 0.5, .communication = 0.75},
                               .memory_bound_and_sm_comm = {.compute = 0.75},
                               .compute_and_copy_engine = {.compute = 0.25, .communication = 0.5},
                               .comm_sms = 4});
  EXPECT_EQ(table.compute_rate(OpFamily::kGemm, 0), kFullRate);
  EXPECT_EQ(table.compute_rate(OpFamily::kGemm, 1), kFullRate * 7 / 8);
  EXPECT_EQ(table.compute_rate(OpFamily::kAttention, 4), kFullRate / 2);
  EXPECT_EQ(table.compute_rate(OpFamily::kGemm, 100), kFullRate / 2);
  EXPECT_EQ(table.compute_rate(OpFamily::kMemoryBound, 2), kFullRate * 7 / 8);
  EXPECT_EQ(table.comm_rate(OpFamily::kGemm), kFullRate * 3 / 4);
  EXPECT_EQ(table.comm_rate(OpFamily::kMemoryBound), kFullRate);
  EXPECT_EQ(table.compute_beside_copies(), kFullRate / 4);
  EXPECT_EQ(table.copies_beside_compute(), kFullRate / 2);
  EXPECT_TRUE(table.compute_slows_comm(0));
  EXPECT_FALSE(ContentionTable(Contention()).compute_slows_comm(1));
}

TEST(ContentionTable, ExchangesOfRowsHaveTheirOwnRates) {
  const ContentionTable table(
      {.gemm_and_sm_comm = {.compute = 0.5},
       .memory_bound_and_sm_comm = {.compute = 0.75},
       .compute_and_copy_engine = {},
       .comm_sms = 32,
       .compute_and_row_exchange = {.compute = 0.875, .communication = 0.25}});
  EXPECT_EQ(table.compute_beside_rows(OpFamily::kGemm), kFullRate * 7 / 8);
  EXPECT_EQ(table.compute_beside_rows(OpFamily::kAttention), kFullRate * 7 / 8);
  EXPECT_EQ(table.compute_beside_rows(OpFamily::kMemoryBound), kFullRate * 7 / 8);  // 16 of 32 SMs
  EXPECT_EQ(table.rows_beside_compute(), kFullRate / 4);
  EXPECT_FALSE(table.compute_slows_comm(0));
  EXPECT_TRUE(table.compute_slows_comm(1));
}

TEST(ContentionTable, ComputeLosesInProportionToTheSmsOfExchanges) {
  const Contention rates{.gemm_and_sm_comm = {.compute = 0.5},
                         .memory_bound_and_sm_comm = {.compute = 0.75},
                         .compute_and_copy_engine = {},
                         .comm_sms = 32,
                         .compute_and_row_exchange = {.compute = 0.875, .communication = 0.25}};
  const ContentionTable half(rates, kRowExchangeSms / 2);
  EXPECT_EQ(half.compute_beside_rows(OpFamily::kGemm), kFullRate * 15 / 16);
  EXPECT_EQ(half.compute_beside_rows(OpFamily::kMemoryBound), kFullRate * 15 / 16);
  // As slow relative to alone, which takes less of the link.
  EXPECT_NEAR(static_cast<double>(half.rows_beside_compute()) / kFullRate,
              0.25 / row_exchange_slowdown(kRowExchangeSms / 2), 1e-4);
}

// 4 H100: 8, 16 and 24 blocks (bench/notes.md, "Exchanges of rows between GPUs").
TEST(RowExchangeSlowdown, IsThatOfMeasuredBlocks) {
  EXPECT_NEAR(row_exchange_slowdown(8), 307.0 / 178, 0.02);
  EXPECT_EQ(row_exchange_slowdown(kRowExchangeSms), 1.0);
  EXPECT_NEAR(row_exchange_slowdown(24), 307.0 / 324, 0.02);
  EXPECT_NEAR(row_exchange_slowdown(1), 8 * row_exchange_slowdown(8), 0.05);
  EXPECT_NEAR(row_exchange_slowdown(64), row_exchange_slowdown(32), 0.01);
}

/// A gather of 24 SMs' worth: with 6 its bytes take four times as long, and load links a quarter.
TEST(CommDemand, FewerSmsMoveFewerBytes) {
  FixedCosts model(small_cluster(16, 8), {.comm_sms = 24});
  model.latency_ns = 1000;
  const CommSpec spec{.kind = CommKind::kAllGather, .placement = {8, 1, 8}, .bytes = 1 << 30};
  const CommChoice choice{.spec = spec, .cost = model.comm_cost(spec)};
  const int64_t bytes_ns = choice.cost.ns - 1000;
  const auto with_sms = [&](const CommChoice& it, int sms) {
    return slowed(model, it, slowdown_by_sms(model, it.spec, sms));
  };
  EXPECT_EQ(with_sms(choice, 0).ns, choice.cost.ns);
  const CommDemand whole = comm_demand(model, spec, choice.cost.ns);
  const int needed = whole.sms;
  EXPECT_EQ(with_sms(choice, 64).ns, choice.cost.ns);  // more than it needs
  for (const int sms : {1, 6, 12}) {
    const int64_t ns = with_sms(choice, sms).ns;
    EXPECT_NEAR(static_cast<double>(ns - 1000) / static_cast<double>(bytes_ns),
                static_cast<double>(needed) / sms, 0.05 * needed / sms);
    const CommDemand limited = comm_demand(model, spec, ns, slowdown_by_sms(model, spec, sms));
    EXPECT_EQ(limited.sms, sms);
    EXPECT_NEAR(static_cast<double>(limited.load[0]) / static_cast<double>(whole.load[0]),
                static_cast<double>(sms) / needed, 0.05);
  }
  CommSpec copies = spec;
  copies.algorithm = CommAlgorithm::kCopyEngineRing;
  const CommChoice by_copies{.spec = copies, .cost = model.comm_cost(copies)};
  EXPECT_EQ(with_sms(by_copies, 1).ns, by_copies.cost.ns);
}

TEST(CommDemand, IsALinkWhileItsBytesFlow) {
  FixedCosts model(small_cluster(16, 8), {.comm_sms = 20});
  model.latency_ns = 25;
  const CommSpec spec{.kind = CommKind::kAllGather, .placement = {8, 1, 8}, .bytes = 4 * 75};
  const CommDemand demand = comm_demand(model, spec, model.comm_ns(spec));
  EXPECT_EQ(demand.bytes_part, kFullRate * 3 / 4);
  EXPECT_EQ(demand.load[0], kFullRate);
  EXPECT_EQ(demand.load[1], 0);
  EXPECT_EQ(demand.load[2], 0);
  EXPECT_EQ(demand.sms, 15);
}

TEST(CommDemand, CopyEnginesTakeNoSms) {
  const FixedCosts model(small_cluster(8, 8));
  const CommSpec spec{.kind = CommKind::kAllGather,
                      .algorithm = CommAlgorithm::kCopyEngineRing,
                      .placement = {8, 1, 8},
                      .bytes = 4000};
  EXPECT_EQ(comm_demand(model, spec, 1000).sms, 0);
  EXPECT_EQ(comm_demand(model, spec, 1000).load[0], kFullRate);
}

TEST(CommDemand, OneRankDemandsNothing) {
  const FixedCosts model(small_cluster(8, 8));
  const CommDemand demand = comm_demand(model, {.placement = {1, 1, 1}, .bytes = 4000}, 0);
  EXPECT_EQ(demand.sms, 0);
  EXPECT_EQ(demand.load[0] + demand.load[1], 0);
}

// A ring over two nodes uses the network links of all 8 ranks of a node, 368 GB/s together, and
// nearly as much of NVLink; a rank alone on its node its own one only.
TEST(LinkLoad, TheSlowestLinkIsTakenWhole) {
  const Cluster cluster = small_cluster(16, 8);
  const LinkLoad ring =
      analytic_link_load(cluster, {.kind = CommKind::kAllReduce, .placement = {16, 2, 8}});
  EXPECT_NEAR(ring.intra_node, 364.5 / 364.5, 0.01);
  EXPECT_NEAR(ring.inter_node, 364.5 / 368.0, 0.01);
  const LinkLoad pair =
      analytic_link_load(cluster, {.kind = CommKind::kAllReduce, .placement = {2, 2, 1}});
  EXPECT_EQ(pair.intra_node, 0);
  EXPECT_EQ(pair.inter_node, 1);
  const LinkLoad node =
      analytic_link_load(cluster, {.kind = CommKind::kAllReduce, .placement = {8, 1, 8}});
  EXPECT_EQ(node.intra_node, 1);
  EXPECT_EQ(node.inter_node, 0);
}

// Of an all-to-all over two nodes of 8, each rank sends 7 parts over NVLink at 317 GB/s and 8 over
// its own network link at 46.
TEST(LinkLoad, AnAllToAllUsesItsOwnNetworkLink) {
  const Cluster cluster = small_cluster(16, 8);
  const LinkLoad load =
      analytic_link_load(cluster, {.kind = CommKind::kAllToAll, .placement = {16, 2, 8}});
  EXPECT_EQ(load.inter_node, 1);
  EXPECT_NEAR(load.intra_node, 7 / 317.7 / (8 / 46.0), 0.001);
}

// Above units of a network with a quarter of the rate, an adapter has three quarters for others.
TEST(LinkLoad, AnOversubscribedNetworkBoundsLessThanTheAdapter) {
  const LinkLoad load =
      analytic_link_load(small_cluster(16, 8), {.placement = {2, 2, 1, 4.0}, .bytes = 1 << 20});
  EXPECT_EQ(load.inter_node, 0.25);
  EXPECT_EQ(load.above_units, 1);
}

int64_t share_of(std::vector<int64_t> loads) {
  return fair_share(loads);
}

TEST(FairShare, IsForThoseThatNeedMore) {
  EXPECT_EQ(share_of({}), kFullRate);
  EXPECT_EQ(share_of({kFullRate}), kFullRate);
  EXPECT_EQ(share_of({kFullRate / 2, kFullRate / 2}), kFullRate);
  EXPECT_EQ(share_of({kFullRate, kFullRate}), kFullRate / 2);
  EXPECT_EQ(share_of({kFullRate / 4, kFullRate}), kFullRate * 3 / 4);
  EXPECT_EQ(share_of({kFullRate, kFullRate / 8, kFullRate / 2, kFullRate / 8}), kFullRate * 3 / 8);
}

TEST(FairShare, UsesALinkUpAndNoMore) {
  std::mt19937 random(7);
  for (int i = 0; i < 1000; ++i) {
    std::vector<int64_t> loads(1 + random() % 6);
    for (int64_t& load : loads) {
      load = 1 + static_cast<int64_t>(random() % kFullRate);
    }
    const int64_t share = share_of(loads);
    int64_t needed = 0;
    int64_t given = 0;
    for (const int64_t load : loads) {
      needed += load;
      given += std::min(load, share);
    }
    EXPECT_LE(given, kFullRate);
    EXPECT_GT(given, std::min(needed, kFullRate) - static_cast<int64_t>(loads.size()));
    std::vector<int64_t> shuffled = loads;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    EXPECT_EQ(share_of(shuffled), share);
  }
}

}  // namespace
}  // namespace braid
