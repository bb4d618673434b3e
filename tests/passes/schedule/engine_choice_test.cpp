#include "passes/schedule/engine_choice.h"

#include <gmock/gmock.h>

#include <array>
#include <string>
#include <vector>

#include "ir/text.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

/// The engines of rank 0 of eight, in one node or in eight. The product takes about 400 us, the sum
/// and the gather of 64 MiB each half of that, and by copies somewhat longer.
std::vector<TaskEngine> engines_of(const std::string& tasks, LongerCopies longer,
                                   int devices_per_node = 8) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 8; ++rank) {
    programs.push_back(parse_program("program step rank=" + std::to_string(rank) +
                                     " ranks=8 events=2\n"
                                     "stream compute kind=compute priority=0\n"
                                     "stream comm kind=comm priority=1\n"
                                     "group data kind=data ranks=0,1,2,3,4,5,6,7\n"
                                     "buffer x bf16 [8192,4096] activation persistent device\n"
                                     "buffer w bf16 [4096,4096] param persistent device\n"
                                     "buffer y bf16 [8192,4096] activation persistent device\n"
                                     "buffer g bf16 [8192,4096] grad persistent device\n"
                                     "buffer h bf16 [1024,4096] grad persistent device\n"
                                     "buffer s bf16 [64] param persistent device\n"
                                     "buffer t bf16 [512] gathered persistent device\n" +
                                     tasks));
  }
  Cluster cluster = parse_cluster("h200x8");
  cluster.devices_per_node = devices_per_node;
  const auto model = make_analytic_model(cluster);
  const RankPrograms ranks = one_program_per_rank(programs);
  const auto engines = engine_choice(ranks, simulate(ranks, *model), *model, longer);
  EXPECT_THAT(engines, Each(engines[0]));
  return engines[0];
}

const std::string kProduct =
    "linear(x, w -> y) {has_bias=false, adds_bias=true} compute forward mb=0 vs=0\n";
const std::string kSum = "reduce_scatter(g -> h) {group=0} comm comm\n";
const std::string kShortGather =
    "all_gather(s -> t) {group=0, engine=\"copy\"} comm comm\n";  // latency is all there is

using enum TaskEngine;
constexpr std::array kBoth = {LongerCopies::kWhereExposed, LongerCopies::kEverywhere};

TEST(EngineChoice, CopiesCarryWhatAProductHides) {
  for (const LongerCopies longer : kBoth) {
    EXPECT_THAT(engines_of(kProduct + kSum, longer), ElementsAre(kAsIs, kCopy));
  }
}

TEST(EngineChoice, SmsCarryWhatNothingHides) {
  for (const LongerCopies longer : kBoth) {
    EXPECT_THAT(engines_of(kSum + kShortGather, longer), Each(kSm));
  }
}

TEST(EngineChoice, EachCallIsLookedAt) {
  // The first is hidden, the second follows on the product.
  const std::string tasks =
      "linear(x, w -> y) {has_bias=false, adds_bias=true} compute forward mb=0 vs=0 record=e0\n" +
      kSum + "reduce_scatter(g -> h) {group=0} comm comm wait=e0\n";
  EXPECT_THAT(engines_of(tasks, LongerCopies::kWhereExposed), ElementsAre(kAsIs, kCopy, kSm));
}

TEST(EngineChoice, CopyEnginesReachOneNode) {
  EXPECT_THAT(engines_of(kProduct + kSum, LongerCopies::kWhereExposed, 1), Each(kAsIs));
}

}  // namespace
}  // namespace braid
