#include "plan/recompute_policies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace braid {
namespace {

using enum RecomputeChoice;
using ::testing::ElementsAre;

// Parity tests compare the programs themselves (tests/parity/recompute_test.cpp).
TEST(RecomputePolicies, HaveComputeWhereFullRepeatsCommunication) {
  EXPECT_THAT(recompute_policies({}), ElementsAre(kNone, kNorms, kAttention, kFull));
  const auto with_compute = ElementsAre(kNone, kNorms, kAttention, kCompute, kFull);
  EXPECT_THAT(recompute_policies({.tensor = 2}), with_compute);
  EXPECT_THAT(recompute_policies({.expert = 2}), with_compute);
  EXPECT_THAT(recompute_policies({.expert_tensor = 2}), with_compute);
  ParallelConfig parallel{.context = 2};
  for (const auto& [method, repeats] :
       std::array{std::pair{"ring", false}, std::pair{"all_gather", false}, std::pair{"a2a", true},
                  std::pair{"a2a+ring", true}}) {
    parallel.context_method = method;
    EXPECT_EQ(recompute_policies(parallel).size(), repeats ? 5 : 4) << method;
  }
}

TEST(RecomputePolicies, HaveNeighbours) {
  const auto dense = recompute_policies({});
  EXPECT_THAT(policies_beside(dense, kNone), ElementsAre(kNorms));
  EXPECT_THAT(policies_beside(dense, kAttention), ElementsAre(kNorms, kFull));
  EXPECT_THAT(policies_beside(dense, kFull), ElementsAre(kAttention));
  EXPECT_THAT(policies_beside(dense, kCompute), ElementsAre(kAttention, kFull));
  const auto experts = recompute_policies({.expert = 2});
  EXPECT_THAT(policies_beside(experts, kCompute), ElementsAre(kAttention, kFull));
  EXPECT_THAT(policies_beside(experts, kFull), ElementsAre(kCompute));
}

}  // namespace
}  // namespace braid
