// With overlap.comm_engine = "copy" nothing is left to a library: every task that communicates is
// one that copy engines can do, in all programs of all ranks, and the bits are those without it.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "ops/collectives.h"
#include "ops/offload.h"
#include "ops/op.h"
#include "parity/layout_config.h"
#include "passes/gradients/reduction_parts.h"
#include "plan/run_spec.h"
#include "support/engine_runs.h"
#include "support/thinned.h"

namespace braid {
namespace {

RunConfig config_by(const Layout& layout, const std::string& engine, const std::string& mode) {
  return config_of({layout.model,
                    layout.overrides + " overlap.comm_engine=" + engine + " overlap.mode=" + mode});
}

struct Communication {
  int64_t copies = 0;
  std::vector<std::string> others;  // that another rank takes part in
};

Communication communication_of(const RunPlan& plan) {
  Communication found;
  for (const RankPlan& rank : plan.ranks) {
    for (const Program& program : rank.programs) {
      for (size_t i = 0; i < program.tasks.size(); ++i) {
        const OpSpec& spec = program.spec(program.tasks[i]);
        const std::optional<GroupId> group = group_of(program, spec);
        if (!group || does_nothing(spec) || find_op(spec.op).op_class != OpClass::kCommunication ||
            program.groups[group->index()].ranks.size() < 2) {
          continue;
        }
        if (is_by_copy_engine(spec)) {
          ++found.copies;
        } else {
          found.others.push_back(program.name + ": " + describe_task(program, TaskId(i)));
        }
      }
    }
  }
  return found;
}

constexpr const char* kUnequalShares =
    "ranks=3 bucket=virtual_stage model.width=40 model.head_size=10";
constexpr const char* kEqualShares =
    "ranks=2 bucket=virtual_stage model.width=40 model.head_size=10";

std::vector<Layout> layouts() {
  const std::vector<std::string> all = {
      "ranks=3",
      "ranks=8 shard=optimizer",
      kUnequalShares,
      "ranks=8",
      kEqualShares,
      "ranks=3 shard=gradients grad_reduce_dtype=bfloat16 train.dtype=bfloat16",
      "ranks=4 shard=parameters",
      "ranks=8 shard=parameters shard_replicas=4 bucket=virtual_stage",
      "ranks=2 tensor=2",
      "ranks=4 tensor=4 sequence_parallel=true",
      "ranks=4 tensor=2 sequence_parallel=true shard=optimizer",
      "ranks=2 pipeline=2 schedule=gpipe",
      "ranks=4 pipeline=4",
      "ranks=2 pipeline=2 virtual_stages=2 schedule=interleaved",
      "ranks=2 pipeline=2 schedule=zb-h1",
      "ranks=2 pipeline=2 virtual_stages=2 schedule=zb-v",
      "ranks=2 pipeline=2 virtual_stages=2 schedule=dualpipe-v",
      "ranks=4 pipeline=2 shard=gradients",
      "ranks=8 pipeline=2 tensor=2 sequence_parallel=true shard=optimizer",
      "ranks=3 context=3",
      "ranks=6 context=6 shard=parameters",
      "ranks=6 context=6 context_method=all_gather",
      "ranks=6 context=3 tensor=2 sequence_parallel=true",
      "ranks=8 context=2 pipeline=2 virtual_stages=2 schedule=zb-v shard=optimizer",
      "ranks=8 context=2 tensor=2 pipeline=2 context_method=all_gather sequence_parallel=true",
      "ranks=2 context=2 context_method=a2a",
      "ranks=6 context=6 context_method=a2a+ring",
  };
  std::vector<Layout> list;
  for (size_t i = 0; i < all.size(); ++i) {
    list.push_back({i % 2 == 0 ? kLlamaModel : kGpt2Model,
                    all[i] + " train.microbatch=1 train.global_batch=24 eval.interval=1"});
  }
  return list;
}

class Copies : public testing::TestWithParam<Layout> {};

TEST_P(Copies, DoAllCommunication) {
  for (const std::string mode : {"auto", "off"}) {
    const Communication found =
        communication_of(plan_run(resolve_run(config_by(GetParam(), "copy", mode), 101)));
    EXPECT_GT(found.copies, 0);
    EXPECT_TRUE(found.others.empty()) << found.others.size() << ", such as " << found.others[0];
  }
}

TEST_P(Copies, GiveTheBitsOfSums) {
  const Outcome sums = run(config_by(GetParam(), "sm", "auto"), 2);
  for (const std::string mode : {"auto", "off"}) {
    expect_same_bits(run(config_by(GetParam(), "copy", mode), 2), sums);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Copies, testing::ValuesIn(thinned(layouts(), 23)));

/// How often sums of the layout are made of so many parts.
std::map<std::string, int64_t> sums_of(const std::string& overrides) {
  std::map<std::string, int64_t> counts;
  const RunPlan plan = plan_run(
      resolve_run(config_by({kLlamaModel, overrides + " train.microbatch=1 train.global_batch=24"},
                            "sm", "auto"),
                  101));
  for (const Program& program : plan.ranks[0].programs) {
    for (const OpSpec& spec : program.specs.all()) {
      const std::optional<GroupId> group = group_of(program, spec);
      const auto parts =
          reduction_parts(spec, group ? std::ssize(program.groups[group->index()].ranks) : 0);
      if (parts.size() == 1) {
        ++counts[parts[0].gather ? "in shares" : "whole"];
      } else if (parts.size() == 2) {
        ++counts["in shares and a rest"];
      }
    }
  }
  return counts;
}

// So the layouts have sums of all kinds.
TEST(CopiesOfLayouts, HaveSumsOfAllKinds) {
  std::map<std::string, int64_t> equal = sums_of(kEqualShares);
  EXPECT_GT(equal["in shares"], 0);
  EXPECT_EQ(equal["in shares and a rest"], 0);
  EXPECT_GT(equal["whole"], 0);
  std::map<std::string, int64_t> unequal = sums_of(kUnequalShares);
  EXPECT_GT(unequal["in shares and a rest"], 0);
  EXPECT_GT(unequal["whole"], 0);
}

}  // namespace
}  // namespace braid
