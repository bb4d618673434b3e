#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kKibi = int64_t{1} << 10;
constexpr int64_t kMebi = int64_t{1} << 20;
constexpr int64_t kGibi = int64_t{1} << 30;

CommChoice choice_on(std::string_view cluster, CommKind kind, int64_t bytes) {
  const auto model = make_analytic_model(parse_cluster(cluster));
  return cheapest_algorithm(
      *model, kind, place_neighbours(model->cluster(), model->cluster().num_devices), bytes);
}

double rate_on(std::string_view cluster, CommKind kind, int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(choice_on(cluster, kind, bytes).cost.ns);
}

// 0.611 of 450 GB/s, which links of their own could not carry: an all-reduce of 8 ranks sends 1.75
// times the buffer over each.
TEST(BetweenNodes, SwitchesSumLongAllReducesOfANode) {
  EXPECT_EQ(choice_on("h100x8", CommKind::kAllReduce, kGibi).spec.algorithm, CommAlgorithm::kNvls);
  EXPECT_NEAR(rate_on("h100x8", CommKind::kAllReduce, 8 * kGibi), 275, 2);
  EXPECT_EQ(choice_on("a100x8", CommKind::kAllReduce, kGibi).spec.algorithm, CommAlgorithm::kRing);
  EXPECT_NE(choice_on("h100-pciex8", CommKind::kAllReduce, kGibi).spec.algorithm,
            CommAlgorithm::kNvls);
  EXPECT_EQ(choice_on("h100x8", CommKind::kAllReduce, 64 * kKibi).spec.algorithm,
            CommAlgorithm::kRing);
}

// Two nodes send each other the buffer once: 8 x 0.88 x 50 GB/s are more than H100's switches sum
// and less than those of B200.
TEST(BetweenNodes, TwoNodesAreBoundBySwitchesOrByTheNetwork) {
  EXPECT_EQ(choice_on("h100x16", CommKind::kAllReduce, kGibi).spec.algorithm,
            CommAlgorithm::kNvlsTree);
  EXPECT_NEAR(rate_on("h100x16", CommKind::kAllReduce, 8 * kGibi), 275, 2);
  EXPECT_NEAR(rate_on("b200x16", CommKind::kAllReduce, 8 * kGibi), 352, 3);
}

// 8 x 0.92 x 50 GB/s carry 2 x 31 / 32 of the buffer.
TEST(BetweenNodes, LongAllReducesOfSeveralNodesAreRings) {
  EXPECT_EQ(choice_on("h100x32", CommKind::kAllReduce, 8 * kGibi).spec.algorithm,
            CommAlgorithm::kRing);
  EXPECT_NEAR(rate_on("h100x32", CommKind::kAllReduce, 8 * kGibi), 368 / (2 * 31.0 / 32), 3);
}

TEST(BetweenNodes, SmallAllReducesAreTrees) {
  const auto us = [](std::string_view cluster) {
    const CommChoice choice = choice_on(cluster, CommKind::kAllReduce, 8 * kKibi);
    EXPECT_EQ(choice.spec.algorithm, CommAlgorithm::kTree);
    return static_cast<double>(choice.cost.ns) * 1e-3;
  };
  // Two hops of LL more, 5 us each, there and back, times 1.8.
  EXPECT_NEAR(us("h100x64") - us("h100x16"), 2 * 2 * 5 * 1.8, 0.01);
}

TEST(BetweenNodes, GathersOfOneRankPerNodeGrowSlowly) {
  const auto model = make_analytic_model(parse_cluster("h100x1024"));
  const auto gather = [&](int nodes) {
    return cheapest_algorithm(*model, CommKind::kAllGather, {nodes, nodes, 1}, kMebi);
  };
  EXPECT_EQ(gather(128).spec.algorithm, CommAlgorithm::kPat);
  CommSpec ring = gather(128).spec;
  ring.algorithm = CommAlgorithm::kRing;
  EXPECT_LT(gather(128).cost.ns * 3 / 2, model->comm_ns(ring));
}

TEST(BetweenNodes, NeverFallsWithBytes) {
  const auto model = make_analytic_model(parse_cluster("h100x64"));
  for (const CommAlgorithm algorithm :
       {CommAlgorithm::kRing, CommAlgorithm::kTree, CommAlgorithm::kNvlsTree}) {
    int64_t last = 0;
    for (int64_t bytes = 1; bytes < 4 * kGibi; bytes = bytes * 3 / 2 + 1) {
      const int64_t now = model->comm_ns({CommKind::kAllReduce, algorithm, {64, 8, 8}, bytes});
      EXPECT_GE(now, last) << comm_algorithm_name(algorithm) << " " << bytes;
      last = now;
    }
  }
}

TEST(BetweenNodes, OversubscriptionAndSlowStacksCostBytes) {
  Cluster cluster = parse_cluster("h100x32");
  const GroupPlacement place{32, 4, 8};
  const CommSpec spec{CommKind::kAllReduce, CommAlgorithm::kNvlsTree, place, 8 * kGibi};
  const double before = analytic_comm_ns(cluster, spec);
  CommSpec crowded = spec;
  crowded.placement.oversubscription = 2;
  EXPECT_NEAR(analytic_comm_ns(cluster, crowded) / before, 2, 0.02);
  cluster.device.stack.communication = 0.5;
  EXPECT_NEAR(analytic_comm_ns(cluster, spec) / before, 2, 0.02);
}

TEST(BetweenNodes, AlgorithmsHaveTheirKindsAndPlaces) {
  const auto fault = [](CommKind kind, CommAlgorithm algorithm, GroupPlacement place) {
    return comm_fault({kind, algorithm, place, 1});
  };
  EXPECT_THAT(fault(CommKind::kAllGather, CommAlgorithm::kNvls, {8, 1, 8}),
              HasSubstr("algorithm nvls is for all_reduce"));
  EXPECT_THAT(fault(CommKind::kAllReduce, CommAlgorithm::kNvls, {16, 2, 8}),
              HasSubstr("on one node"));
  EXPECT_THAT(fault(CommKind::kAllReduce, CommAlgorithm::kNvlsTree, {8, 1, 8}),
              HasSubstr("on several nodes"));
  EXPECT_THAT(fault(CommKind::kAllReduce, CommAlgorithm::kNvlsTree, {4, 4, 1}),
              HasSubstr("2 and more ranks of each node"));
  EXPECT_THAT(fault(CommKind::kAllGather, CommAlgorithm::kPat, {16, 2, 8}),
              HasSubstr("one rank on each node"));
  EXPECT_THAT(fault(CommKind::kAllReduce, CommAlgorithm::kPat, {4, 4, 1}),
              HasSubstr("all_gather and reduce_scatter"));
  EXPECT_EQ(fault(CommKind::kReduceScatter, CommAlgorithm::kPat, {4, 4, 1}), "");
}

}  // namespace
}  // namespace braid
