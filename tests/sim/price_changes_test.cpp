#include "sim/price_changes.h"

#include <gmock/gmock.h>

#include <array>

#include "sim/analytic_model.h"
#include "sim/op_family.h"
#include "sim/predict.h"
#include "sim/sim_specs.h"
#include "sim/simulate.h"

namespace braid {
namespace {

TEST(PriceChanges, OfComputeAreThoseOfTheFamily) {
  PriceChanges changes;
  changes.products = 2;
  changes.fp8_products = 3;
  changes.attention = 5;
  changes.memory_bound = 7;
  const auto factor = [&](const OpSpec& spec) {
    return compute_change(changes, spec, family_of(spec));
  };
  EXPECT_EQ(factor(linear_spec(64, 64, 64)), 2);
  EXPECT_EQ(factor(attention_spec({})), 5);
  EXPECT_EQ(factor(add_spec(64)), 7);
  EXPECT_EQ(factor(all_reduce_spec(64)), 1);
}

TEST(PriceChanges, OfCommunicationAreThoseOfItsLinksAndKind) {
  const Cluster cluster = make_cluster(*find_device("h100"), 32);
  PriceChanges changes;
  changes.node_links = 2;
  changes.network_links = 3;
  changes.group_kinds[static_cast<size_t>(GroupKind::kTensor)] = 5;
  changes.node_network = {1, 1, 7, 1};
  const auto factor = [&](GroupKind kind, const std::vector<int>& ranks) {
    return comm_change(changes, cluster, kind, ranks);
  };
  EXPECT_EQ(factor(GroupKind::kData, {0, 1}), 2);
  EXPECT_EQ(factor(GroupKind::kTensor, {0, 1}), 10);
  EXPECT_EQ(factor(GroupKind::kData, {0, 8}), 3);
  EXPECT_EQ(factor(GroupKind::kData, {0, 8, 17}), 21);
  EXPECT_EQ(factor(GroupKind::kData, {16, 17}), 2);
}

TEST(PriceChanges, RanksOfOneProgramAreSplitBySpeed) {
  const std::array<Program, 2> programs;
  const RankPrograms ranks{
      .programs = {&programs[0], &programs[1]}, .program_of = {0, 0, 1, 1}, .ranks_of_group = {}};
  const RankPrograms split = split_by_speed(ranks, {1, 2, 2, 2});
  EXPECT_THAT(split.program_of, testing::ElementsAre(0, 1, 2, 2));
  EXPECT_THAT(split.programs, testing::ElementsAre(&programs[0], &programs[0], &programs[1]));
  EXPECT_EQ(split_by_speed(ranks, {}).program_of, ranks.program_of);
}

}  // namespace
}  // namespace braid
