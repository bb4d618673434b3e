#include "plan/unit_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/errors.h"
#include "config/load.h"
#include "config/validate.h"
#include "ops/op.h"
#include "plan/run_plan.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

RankPlan rank_plan(std::vector<std::string> overrides) {
  overrides.insert(overrides.end(),
                   {"eval.interval=0", "logging.run_folder=none", "train.microbatch=1"});
  const RunConfig config = parse_config("", "units", overrides);
  validate(config);
  const RunSpec run = resolve_run(resolved(config), 4096);
  return plan_run(run, {.ranks = {0}, .verify = false}).ranks.front();
}

/// A small hybrid with experts, two of which a rank has; 4 ranks.
RankPlan hybrid_plan(const std::string& shard, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"model.family=llama", "model.pattern=ME*-ME", "model.width=64",
                           "model.heads=4", "model.ffn=256", "model.mamba_num_heads=4",
                           "model.mamba_head_dim=32", "model.ssm_state_size=16", "model.experts=4",
                           "model.experts_per_token=2", "model.expert_ffn=96", "train.sequence=64",
                           "train.global_batch=8", "train.dtype=bfloat16", "parallel.ranks=4",
                           "parallel.expert=2", "parallel.shard=" + shard});
  return rank_plan(std::move(more));
}

const UnitPools& pools_of(const std::vector<UnitMemory>& memory, std::string_view what) {
  for (const UnitMemory& one : memory) {
    if (one.what == what) {
      return one.pools;
    }
  }
  throw std::out_of_range("no such units");
}

TEST(UnitMemory, HasEachShardedUnitOfTheLayoutOnce) {
  const RankPlan plan = hybrid_plan("parameters");
  const Program& program = plan.programs[kTrainProgram];
  std::set<std::pair<uint32_t, uint32_t>> buckets;
  std::set<uint32_t> units;
  std::set<uint32_t> buffers;
  for (const UnitUse& use : gathered_weights(program)) {
    units.insert(use.unit);
    buckets.insert({use.unit, use.bucket});
    buffers.insert(static_cast<uint32_t>(use.buffer.index()));
  }
  EXPECT_EQ(buckets.size(), plan.layout.units.size());
  std::set<std::pair<int64_t, std::string>> of_layout;
  int64_t bytes = 0;
  for (const ParameterUnit& unit : plan.layout.units) {
    of_layout.insert({unit.layer, unit.layer < 0 ? unit.name : ""});
    bytes += (unit.num_elems * 2 + kBufferAlignmentBytes - 1) / kBufferAlignmentBytes *
             kBufferAlignmentBytes;
  }
  EXPECT_EQ(units.size(), of_layout.size());
  EXPECT_LT(units.size(), buckets.size());  // layers with experts have two
  int64_t num_gathered = 0;
  for (const Buffer& buffer : program.buffers) {
    num_gathered += buffer.role == BufferRole::kGathered;
  }
  EXPECT_GT(std::ssize(buffers), std::ssize(buckets));  // forward and backward
  EXPECT_LE(std::ssize(buffers), num_gathered);
  EXPECT_EQ(pools_of(unit_memory(program), "gathered weights").own_bytes, bytes);
}

TEST(UnitMemory, OfGradientsHasTheBufferThatIsReduced) {
  const RankPlan plan = hybrid_plan("gradients");
  const std::vector<UnitMemory> in_f32 = unit_memory(plan.programs[kTrainProgram]);
  ASSERT_EQ(in_f32.size(), 1u);
  int64_t elems = 0;
  for (const ParameterUnit& unit : plan.layout.units) {
    elems += unit.num_elems;
  }
  const UnitPools& pools = pools_of(in_f32, "unreduced gradients");
  EXPECT_EQ(pools.own_bytes, 4 * elems);
  // And, for a reduction in bf16, what was rounded for it.
  const std::vector<UnitMemory> in_bf16 = unit_memory(
      hybrid_plan("gradients", {"parallel.grad_reduce_dtype=bfloat16"}).programs[kTrainProgram]);
  EXPECT_EQ(pools_of(in_bf16, "unreduced gradients").own_bytes, 6 * elems);
}

TEST(UnitMemory, IsNotShownIfRanksHoldUnitsWhole) {
  for (const char* const shard : {"none", "optimizer"}) {
    EXPECT_THAT(unit_memory(hybrid_plan(shard).programs[kTrainProgram]), IsEmpty());
  }
  EXPECT_EQ(describe_unit_memory({}), "");
}

TEST(UnitMemory, IsALineForEachKindOfBuffer) {
  const UnitPools pools{.planned_bytes = 3 << 20,
                        .live_bytes = 2 << 20,
                        .max_pool_bytes = 4 << 20,
                        .max_pool_copies = 2,
                        .kind_pools_bytes = 5 << 20,
                        .own_bytes = 9 << 20};
  EXPECT_EQ(describe_unit_memory({{"gathered weights", pools}}),
            "gathered weights alone 3.00 MiB (1.500 x the bytes live at once); MaxPool 4.00 MiB (2 "
            "copies), a pool per kind 5.00 MiB, a buffer per unit 9.00 MiB\n");
}

/// The layouts of published models in which ranks gather their weights.
TEST(UnitMemory, OfPublishedModelsIsAtTheBoundAndBelowEveryPool) {
  const std::vector<std::vector<std::string>> layouts = {
      {"model.preset=nemotron-h-8b", "parallel.ranks=8", "train.global_batch=8"},
      {"model.preset=deepseek-v3", "parallel.ranks=128", "parallel.expert=64",
       "train.global_batch=128"}};
  for (std::vector<std::string> keys : layouts) {
    SCOPED_TRACE(keys.front());
    keys.insert(keys.end(),
                {"parallel.shard=parameters", "train.sequence=4096", "train.dtype=bfloat16"});
    const RankPlan plan = rank_plan(keys);
    const StepPlan& step = plan.memory.programs[kTrainProgram];
    EXPECT_LE(static_cast<double>(step.arena_bytes),
              1.05 * static_cast<double>(step.max_live_bytes));
    for (const UnitMemory& units : unit_memory(plan.programs[kTrainProgram])) {
      SCOPED_TRACE(units.what);
      EXPECT_LE(static_cast<double>(units.pools.planned_bytes),
                1.05 * static_cast<double>(units.pools.live_bytes));
      EXPECT_LT(units.pools.planned_bytes, units.pools.max_pool_bytes);
      EXPECT_LT(units.pools.planned_bytes, units.pools.kind_pools_bytes);
    }
  }
}

/// The offsets at which a rank's collectives of a group find their operands, in order.
using Offsets = std::vector<int64_t>;

std::map<std::vector<int>, Offsets> offsets_by_group(const RankPlan& plan) {
  std::map<std::vector<int>, Offsets> offsets;
  const Program& program = plan.programs[kTrainProgram];
  const StepPlan& step = plan.memory.programs[kTrainProgram];
  for (const Task& task : program.tasks) {
    const std::optional<GroupId> group = group_of(program, program.spec(task));
    for (const BufferRange& range : program.operands_of(task)) {
      if (group) {
        offsets[program.groups[group->index()].ranks].push_back(
            step.offset_bytes[range.buffer.index()]);
      }
    }
  }
  return offsets;
}

// What symmetric windows need (window_layout.h), of experts too: the plan is the same whatever the
// budget is, and its offsets are constants of the run.
TEST(UnitMemory, LiesAtTheSameOffsetsOnAllRanksOfAGroup) {
  const std::vector<std::string> keys = {"model.family=llama",
                                         "model.pattern=ME*-ME",
                                         "model.width=64",
                                         "model.heads=4",
                                         "model.ffn=256",
                                         "model.mamba_num_heads=4",
                                         "model.mamba_head_dim=32",
                                         "model.ssm_state_size=16",
                                         "model.experts=4",
                                         "model.experts_per_token=2",
                                         "model.expert_ffn=96",
                                         "train.sequence=64",
                                         "train.global_batch=8",
                                         "train.microbatch=1",
                                         "parallel.ranks=8",
                                         "parallel.pipeline=2",
                                         "parallel.expert=2",
                                         "parallel.shard=parameters",
                                         "memory.gather_budget=2MiB",
                                         "eval.interval=0",
                                         "logging.run_folder=none"};
  const RunConfig config = parse_config("", "offsets", keys);
  validate(config);
  const RunPlan plan = plan_run(resolve_run(resolved(config), 4096));
  std::map<std::vector<int>, std::set<Offsets>> by_group;
  for (const RankPlan& rank : plan.ranks) {
    for (const auto& [group, offsets] : offsets_by_group(rank)) {
      if (group.size() > 1) {
        by_group[group].insert(offsets);
      }
    }
  }
  EXPECT_GE(by_group.size(), 4u);  // dense and expert groups of two stages, at least
  for (const auto& [group, offsets] : by_group) {
    if (plan.run.mesh.position(group.front()).pipeline ==
        plan.run.mesh.position(group.back()).pipeline) {
      EXPECT_EQ(offsets.size(), 1u) << "a group with rank " << group.front();
    }
  }
}

TEST(UnitMemory, StaysWithinItsBudgets) {
  const RankPlan plan =
      hybrid_plan("parameters", {"memory.gather_budget=600KB", "memory.grad_budget=2200KB"});
  const std::vector<UnitMemory> memory = unit_memory(plan.programs[kTrainProgram]);
  EXPECT_LE(pools_of(memory, "gathered weights").live_bytes, 600'000);
  EXPECT_LE(pools_of(memory, "unreduced gradients").live_bytes, 2'200'000);
}

TEST(UnitMemory, RefusesABudgetBelowWhatIsUsedAtOneTime) {
  EXPECT_THAT([] { hybrid_plan("parameters", {"memory.gather_budget=50KB"}); },
              testing::ThrowsMessage<ConfigError>(
                  HasSubstr("memory.gather_budget = \"50KB\": rank 0 needs")));
}

}  // namespace
}  // namespace braid
