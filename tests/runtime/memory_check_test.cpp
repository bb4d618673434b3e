#include "runtime/memory_check.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/text.h"
#include "plan/run_spec.h"
#include "support/memory_runs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal_of(const RunConfig& config, const RunMemory& memory) {
  const RunPlan plan = memory_plan_of(config);
  return message_of<ConfigError>([&] { check_memory(plan, memory); });
}

TEST(MemoryCheck, RanksOfAGpuHaveEqualPartsOfIt) {
  const RunConfig alone = memory_config({"parallel.ranks=2"});
  const RunConfig shared =
      memory_config({"parallel.ranks=2", "runtime.ranks_per_gpu=8", "overlap.comm_engine=copy"});
  RunConfig by_copies = alone;
  by_copies.overlap.comm_engine = "copy";
  const int64_t needed = needed_bytes(by_copies);
  EXPECT_EQ(needed_bytes(shared), needed);
  const RunPlan plan = memory_plan_of(shared);
  check_memory(plan, gpu_of(2 * needed));
  EXPECT_THAT(refusal_of(shared, gpu_of(2 * needed - 1)),
              HasSubstr("each rank's share of the GPU of the test has"));
}

TEST(MemoryCheck, RefusesOneByteTooMany) {
  for (const MakeMemory make_memory : {gpu_of, host_of}) {
    const RunConfig config = memory_config({});
    const RunPlan plan = memory_plan_of(config);
    const int64_t needed = needed_bytes(config, make_memory);
    EXPECT_NO_THROW(check_memory(plan, make_memory(needed)));
    EXPECT_THROW(check_memory(plan, make_memory(needed - 1)), ConfigError);
  }
}

TEST(MemoryCheck, SaysWhatIsNeededByClass) {
  EXPECT_THAT(refusal_of(memory_config({}), gpu_of(int64_t{700} << 20)),
              AllOf(StartsWith("rank 0 needs "),
                    HasSubstr(" of GPU memory, the GPU of the test has 700 MiB free: weights "),
                    HasSubstr(", main weights "), HasSubstr(", main gradients "),
                    HasSubstr(", optimizer state "), HasSubstr(", activations "),
                    HasSubstr(", inputs and outputs "), HasSubstr(", scratch of kernels "),
                    HasSubstr(", CUDA ")));
  EXPECT_THAT(refusal_of(memory_config({"parallel.ranks=2"}), host_of(1 << 20)),
              AllOf(StartsWith("2 ranks need "),
                    HasSubstr(" of memory, this machine has 1.00 MiB free: weights "),
                    HasSubstr(", loading and saving ")));
}

/// With so much free that the changed run fits to the byte, the change is what is proposed.
struct Proposal {
  std::string name;
  MakeMemory memory;
  std::vector<std::string> settings;  // of the run that does not fit
  std::vector<std::string> changes;   // that make it fit
  std::string text;
};

std::ostream& operator<<(std::ostream& out, const Proposal& proposal) {
  return out << proposal.name;
}

class Proposes : public ::testing::TestWithParam<Proposal> {};

TEST_P(Proposes, TheCheapestChangeThatFits) {
  const Proposal& proposal = GetParam();
  std::vector<std::string> changed = proposal.settings;
  changed.insert(changed.end(), proposal.changes.begin(), proposal.changes.end());
  const int64_t needed = needed_bytes(memory_config(changed), proposal.memory);
  EXPECT_THAT(
      refusal_of(memory_config(proposal.settings), proposal.memory(needed)),
      HasSubstr("; nearest valid setting: " + proposal.text + " (" + format_bytes(needed) + ")"));
  const std::string less =
      refusal_of(memory_config(proposal.settings), proposal.memory(needed - 1));
  EXPECT_THAT(less, ::testing::Not(HasSubstr("setting: " + proposal.text + " (")));
}

INSTANTIATE_TEST_SUITE_P(
    MemoryCheck, Proposes,
    ::testing::Values(
        Proposal{"norms", gpu_of, {}, {"memory.recompute=norms"}, "memory.recompute = \"norms\""},
        Proposal{"attention",
                 gpu_of,
                 {"model.heads=16", "train.microbatch=1"},
                 {"memory.recompute=attention"},
                 "memory.recompute = \"attention\""},
        Proposal{"full",
                 gpu_of,
                 {"train.microbatch=1"},
                 {"memory.recompute=full"},
                 "memory.recompute = \"full\""},
        Proposal{"microbatch", gpu_of, {}, {"train.microbatch=2"}, "train.microbatch = 2"},
        Proposal{"copies_of_the_state",
                 host_of,
                 {"checkpoint.async=true", "train.steps=1000"},
                 {"checkpoint.async=false"},
                 "checkpoint.async = false"},
        Proposal{"smaller_microbatch", gpu_of, {}, {"train.microbatch=1"}, "train.microbatch = 1"},
        Proposal{"shard_optimizer",
                 gpu_of,
                 // Else NCCL needs more than the rank.
                 {"parallel.ranks=4", "train.sequence=16", "overlap.comm_engine=copy"},
                 {"parallel.shard=optimizer"},
                 "parallel.shard = \"optimizer\""},
        Proposal{"shard_gradients",
                 gpu_of,
                 // With one microbatch, or few layers, sharding the optimizer alone saves as much.
                 {"parallel.ranks=4", "train.sequence=16", "train.microbatch=1", "model.layers=16",
                  "overlap.comm_engine=copy"},
                 {"parallel.shard=gradients"},
                 "parallel.shard = \"gradients\""},
        Proposal{"offload",
                 gpu_of,
                 // Else half of them suffices: what remains is scratch.
                 {"memory.recompute=full", "train.microbatch=1", "train.global_batch=1",
                  "model.layers=16", "train.sequence=8192", "runtime.fuse_swiglu=off"},
                 {"memory.offload_layers=16"},
                 "memory.offload_layers = 16"},
        Proposal{"fewer_microbatches",
                 host_of,
                 {"memory.recompute=full", "train.microbatch=1", "train.global_batch=64"},
                 {"train.global_batch=32"},
                 "train.global_batch = 32"},
        Proposal{"together",
                 gpu_of,
                 {},
                 {"train.microbatch=1", "memory.recompute=full"},
                 "train.microbatch = 1, memory.recompute = \"full\""},
        Proposal{"on_the_host",
                 host_of,
                 {},
                 {"memory.recompute=norms"},
                 "memory.recompute = \"norms\""}),
    [](const auto& each) { return each.param.name; });

TEST(MemoryCheck, WhereNothingHelpsNamesTheClassThatTakesMost) {
  const RunConfig config = memory_config({"model.width=512", "train.microbatch=1"});
  EXPECT_THAT(refusal_of(config, gpu_of(int64_t{700} << 20)),
              AllOf(HasSubstr("do not make it fit, even together; "),
                    HasSubstr(" take the most: lower train.sequence = 2048 or the sizes in "
                              "[model], or raise parallel.tensor = 1 or parallel.pipeline = 1")));
  EXPECT_THAT(refusal_of(config, host_of(1 << 20)),
              AllOf(HasSubstr("; activations "),
                    HasSubstr(" or the sizes in [model] or parallel.ranks = 1")));
}

TEST(MemoryCheck, ARunOnGpusNeedsTheHostToo) {
  const RunConfig config = memory_config({"memory.offload_layers=4", "memory.offload_min_bytes=1"});
  RunMemory memory = gpu_of(int64_t{1} << 40);
  memory.host_bytes = 1 << 10;
  EXPECT_THAT(refusal_of(config, memory),
              AllOf(StartsWith("1 rank needs "), HasSubstr("of memory, this machine has 1.00 KiB"),
                    HasSubstr("activations on the host ")));
}

TEST(MemoryCheck, AHostNeedsRoomForItsOwnRanks) {
  const RunConfig config = memory_config({"parallel.ranks=4", "train.microbatch=1"});
  const RunPlan plan = memory_plan_of(config);
  const int64_t needed = needed_bytes(config, host_of);
  RunMemory half = host_of(needed * 3 / 4);
  EXPECT_THROW(check_memory(plan, half), ConfigError);
  half.host_ranks = {2, 3};
  EXPECT_NO_THROW(check_memory(plan, half));
  half.host_bytes = 1 << 20;
  EXPECT_THAT(refusal_of(config, half), StartsWith("2 of 4 ranks need "));
  half.host_ranks = {1};
  EXPECT_THAT(refusal_of(config, half), StartsWith("1 of 4 ranks needs "));
}

TEST(MemoryCheck, TheRankThatNeedsMostCounts) {
  const RunConfig config = memory_config({"parallel.ranks=2", "parallel.pipeline=2",
                                          "model.vocabulary=4096", "parallel.last_stage_layers=1"});
  const RunPlan plan = memory_plan_of(config);
  int64_t most = 0;
  for (const RankPlan& rank : plan.ranks) {
    most = std::max(most, rank_needs(gpu_backend(), rank, {.with_context = true}).bytes());
  }
  EXPECT_EQ(memory_uses(plan, gpu_of(0)).front().needs.bytes(), most);
}

TEST(MemoryCheck, DescribesWhatFitsAndWhatDoesNot) {
  const RunConfig config = memory_config({});
  const RunPlan plan = memory_plan_of(config);
  EXPECT_THAT(describe_uses(memory_uses(plan, gpu_of(int64_t{4} << 30))),
              AllOf(StartsWith("fits      "),
                    HasSubstr(" of 4.00 GiB in the GPU of the test: rank 0, weights ")));
  EXPECT_THAT(describe_uses(memory_uses(plan, gpu_of(1))),
              StartsWith("does not fit: rank 0 needs "));
}

TEST(MemoryCheck, KnowsWhatIsFreeHere) {
  const RunMemory memory = free_memory({}, 3);
  EXPECT_FALSE(memory.gpu.has_value());
  EXPECT_GT(memory.host_bytes.value_or(0), 0);
  EXPECT_EQ(memory.threads_per_rank, 3);
}

}  // namespace
}  // namespace braid
