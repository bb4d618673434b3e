#include "runtime/host_needs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/cpu_executor.h"
#include "backends/cpu/cpu_scratch.h"
#include "config/validate.h"
#include "plan/run_spec.h"
#include "runtime/engine.h"
#include "state/checkpointing.h"
#include "state/state_shards.h"

namespace braid {
namespace {

RunConfig small_config(int64_t ranks, const std::string& dtype) {
  RunConfig config;
  config.model.layers = 4;
  config.model.width = 64;
  config.model.heads = 4;
  config.train.sequence = 64;
  config.train.dtype = dtype;
  config.parallel.ranks = ranks;
  config.logging.run_folder = "unused";
  return resolved(config);
}

int64_t bytes_of(const MemoryNeeds& needs, std::string_view what) {
  const auto found = std::find_if(needs.parts.begin(), needs.parts.end(),
                                  [&](const auto& part) { return part.what == what; });
  return found == needs.parts.end() ? 0 : found->bytes;
}

TEST(HostNeeds, OfTheCpuAreThoseOfAllRanks) {
  const RunPlan plan = plan_run(resolve_run(small_config(2, "float32"), 257));
  int64_t expected = checkpoint_host_bytes(plan.layout);
  for (const RankPlan& rank : plan.ranks) {
    expected += rank.memory.peak_bytes() + cpu_scratch_bytes(rank.programs, 3);
  }
  const MemoryNeeds needs = cpu_needs(plan, 3);
  EXPECT_EQ(needs.bytes(), expected);
  EXPECT_EQ(needs.whose, "2 ranks");
  const RunPlan stages =
      plan_run(resolve_run(small_config(2, "float32"), 257), {.one_rank_per_stage = true});
  EXPECT_EQ(stages.ranks.size(), 1u);
  EXPECT_EQ(cpu_needs(stages, 3).bytes(), expected) << "a rank that is not planned is as another";
}

TEST(HostNeeds, OffloadedActivationsAreOnTheHost) {
  RunConfig config = small_config(1, "float32");
  config.memory.offload_layers = 2;
  config.memory.offload_min_bytes = 1;
  const RunPlan plan = plan_run(resolve_run(config, 257));
  EXPECT_GT(plan.ranks[0].memory.host_bytes, 0);
  const MemoryNeeds needs = staging_needs(plan);
  EXPECT_EQ(bytes_of(needs, "activations on the host"), plan.ranks[0].memory.host_bytes);
  EXPECT_EQ(needs.bytes(), plan.ranks[0].memory.host_bytes + checkpoint_host_bytes(plan.layout));
}

// Two hosts of two ranks each, a pipeline stage a host: layers that are offloaded differ.
TEST(HostNeeds, OfAHostAreThoseOfItsRanks) {
  RunConfig config = small_config(2, "float32");  // of each stage
  config.parallel.pipeline = 2;
  config.parallel.last_stage_layers = 1;
  config.memory.offload_layers = 2;
  config.memory.offload_min_bytes = 1;
  const RunPlan all = plan_run(resolve_run(config, 257));
  const RunPlan stages = plan_run(resolve_run(config, 257), {.one_rank_per_stage = true});
  const int64_t pieces = checkpoint_host_bytes(all.layout);
  int64_t of_hosts = 0;
  for (const std::vector<int>& host : {std::vector{0, 1}, std::vector{2, 3}}) {
    SCOPED_TRACE(host.front());
    int64_t offloaded = 0;
    int64_t on_cpu = pieces;
    for (const int rank : host) {
      const RankPlan& planned = all.ranks[static_cast<size_t>(rank)];
      offloaded += planned.memory.host_bytes;
      on_cpu += planned.memory.peak_bytes() + planned.memory.host_bytes +
                cpu_scratch_bytes(planned.programs, 3);
    }
    of_hosts += offloaded;
    for (const RunPlan* const plan : {&all, &stages}) {
      const MemoryNeeds needs = staging_needs(*plan, host);
      EXPECT_EQ(bytes_of(needs, "activations on the host"), offloaded);
      EXPECT_EQ(needs.bytes(), offloaded + pieces);
      EXPECT_EQ(needs.whose, "2 of 4 ranks");
      EXPECT_EQ(cpu_needs(*plan, 3, host).bytes(), on_cpu);
    }
  }
  EXPECT_NE(of_hosts, 0);
  EXPECT_EQ(bytes_of(staging_needs(all), "activations on the host"), of_hosts);
}

// In bf16 and with shards: main weights and moments of one rank or the other, once each.
TEST(HostNeeds, CopiesForCheckpointsAreWhatIsAllocated) {
  for (const std::string shard : {"none", "optimizer", "parameters"}) {
    SCOPED_TRACE(shard);
    RunConfig config = small_config(2, "bfloat16");
    config.parallel.shard = shard;
    config.optimizer.moments_dtype = shard == "optimizer" ? "bfloat16" : "float32";
    config.checkpoint.async = true;
    config.train.steps = config.checkpoint.interval + 1;
    const RunPlan plan = plan_run(resolve_run(config, 257));
    const int64_t bytes = bytes_of(staging_needs(plan), "copies for checkpoint.async");
    EXPECT_EQ(bytes_of(cpu_needs(plan, 3), "copies for checkpoint.async"), bytes);
    int64_t elems = 0;
    for (const Parameter& parameter : plan.layout.parameters) {
      elems += stored_shape(parameter, plan.run.model).num_elems();
    }
    EXPECT_EQ(bytes, elems * (shard == "optimizer" ? 4 + 2 + 2 : 4 + 4 + 4));
    Engine engine(plan, {});
    DeviceShards shards = engine.state_shards();
    shards.prepare_copy();
    EXPECT_EQ(shards.copy_bytes(), bytes);
    int64_t of_hosts = 0;
    for (const int rank : {0, 1}) {
      of_hosts += bytes_of(staging_needs(plan, std::vector{rank}), "copies for checkpoint.async");
    }
    EXPECT_EQ(of_hosts, bytes);
    config.train.steps = config.checkpoint.interval;  // saves at the end, when no step follows
    EXPECT_EQ(
        bytes_of(staging_needs(plan_run(resolve_run(config, 257))), "copies for checkpoint.async"),
        0);
  }
}

// What the executor allocates beside its arenas grows with its workers by their scratch alone.
TEST(HostNeeds, CpuScratchIsWhatTheExecutorAllocates) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const RankPlan rank = plan_run(resolve_run(small_config(1, dtype), 257)).ranks[0];
    const auto workspace = [&](int workers) {
      const CpuExecutor executor(rank.programs, rank.memory,
                                 CpuExecutorOptions{.num_workers = workers});
      return executor.workspace_bytes();
    };
    const int64_t scratch = cpu_scratch_bytes(rank.programs, 1);
    EXPECT_GT(scratch, 0);
    EXPECT_EQ(workspace(4) - workspace(1), cpu_scratch_bytes(rank.programs, 4) - scratch);
  }
}

}  // namespace
}  // namespace braid
