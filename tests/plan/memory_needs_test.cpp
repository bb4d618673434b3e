#include "plan/memory_needs.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "backends/cuda/device_needs.h"
#include "backends/registry/registry.h"
#include "config/validate.h"
#include "plan/run_spec.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

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

TEST(MemoryNeeds, OfAGpuAreThePlanScratchAndTheDriver) {
  const RunPlan plan = plan_run(resolve_run(small_config(1, "bfloat16"), 257));
  const RankPlan& rank = plan.ranks[0];
  const CudaNeeds beside = cuda_needs(rank.programs, true);
  const MemoryNeeds needs = rank_needs(gpu_backend(), rank, {});
  EXPECT_EQ(needs.whose, "rank 0");
  EXPECT_EQ(needs.bytes(), rank.memory.peak_bytes() + beside.scratch_bytes + beside.driver_bytes);
  EXPECT_EQ(bytes_of(needs, "scratch of kernels"), beside.scratch_bytes);
  EXPECT_EQ(bytes_of(needs, "optimizer state"),
            rank.memory.persistent_by_role.at(BufferRole::kOptimizerState));
  EXPECT_EQ(rank_needs(gpu_backend(), rank, {.with_context = true}).bytes(),
            needs.bytes() + kCudaContextBytes);
  EXPECT_THAT(describe_parts(needs), HasSubstr(", scratch of kernels "));
}

TEST(MemoryNeeds, OfSeveralGpusHaveNcclUnlessCopyEnginesDoAll) {
  RunConfig config = small_config(2, "bfloat16");
  config.parallel.shard = "optimizer";
  const RunPlan plan = plan_run(resolve_run(config, 257));
  const CudaNeeds beside = cuda_needs(plan.ranks[0].programs, true);
  ASSERT_EQ(beside.nccl.size(), 3u);
  EXPECT_GT(beside.nccl_bytes(), 0);
  EXPECT_EQ(bytes_of(rank_needs(gpu_backend(), plan.ranks[0], {}), "NCCL"), beside.nccl_bytes());
  EXPECT_EQ(describe_nccl_needs(plan.ranks[0].programs),
            "nccl      about 1.78 GiB of 3 communicators: gradient.shard of ranks 0, 1 608 MiB; "
            "loss of ranks 0, 1 608 MiB; model.shard of ranks 0, 1 608 MiB\n");
  config.overlap.comm_engine = "copy";
  const RunPlan by_copies = plan_run(resolve_run(config, 257));
  EXPECT_TRUE(nccl_needs(by_copies.ranks[0].programs).empty());
  EXPECT_EQ(bytes_of(rank_needs(gpu_backend(), by_copies.ranks[0], {}), "NCCL"), 0);
  EXPECT_EQ(describe_nccl_needs(by_copies.ranks[0].programs), "");
  EXPECT_EQ(describe_nccl_needs(
                plan_run(resolve_run(small_config(1, "bfloat16"), 257)).ranks[0].programs),
            "");
}

TEST(MemoryNeeds, PartsOfOneNameAreAdded) {
  MemoryNeeds needs;
  needs.add("a", 3);
  needs.add("b", 0);
  needs.add("a", 4);
  EXPECT_EQ(describe_parts(needs), "a 7 B");
}

TEST(MemoryNeeds, LargestPartIsNamed) {
  const MemoryNeeds needs{.whose = "rank 0", .parts = {{"a", 3}, {"b", 5}, {"c", 4}}};
  EXPECT_EQ(needs.largest().what, "b");
  EXPECT_EQ(needs.bytes(), 12);
  EXPECT_EQ(describe_parts(needs), "a 3 B, b 5 B, c 4 B");
}

}  // namespace
}  // namespace braid
