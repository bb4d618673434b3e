#include "sim/contention.h"

#include <gtest/gtest.h>

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
  EXPECT_TRUE(table.compute_slows_others());
  EXPECT_FALSE(ContentionTable(Contention()).compute_slows_others());
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
  EXPECT_TRUE(table.compute_slows_others());
}

TEST(CommDemand, IsWhatItMovesOnAverage) {
  FixedCosts model(small_cluster(16, 8), {.comm_sms = 20});
  model.latency_ns = 25;
  const CommSpec spec{.kind = CommKind::kAllGather, .placement = {8, 1, 8}, .bytes = 4 * 75};
  const CommDemand demand = comm_demand(model, spec, model.comm_ns(spec));
  EXPECT_EQ(demand.bytes_part, kFullRate * 3 / 4);
  EXPECT_EQ(demand.load[0], kFullRate * 3 / 4);
  EXPECT_EQ(demand.load[1], 0);
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

TEST(SharedLinkRate, SlowsBytesOnly) {
  const CommDemand half{.sms = 1, .bytes_part = kFullRate / 2, .load = {kFullRate / 2, 0}};
  EXPECT_EQ(shared_link_rate(half, kFullRate), kFullRate);
  EXPECT_EQ(shared_link_rate(half, 3 * kFullRate), kFullRate / 2);  // 1/2 + 3/2
  const CommDemand whole{.sms = 1, .bytes_part = kFullRate, .load = {kFullRate, 0}};
  EXPECT_EQ(shared_link_rate(whole, 4 * kFullRate), kFullRate / 4);
}

}  // namespace
}  // namespace braid
