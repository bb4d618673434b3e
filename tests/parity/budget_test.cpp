// Losses, weights and optimizer state are the same bits with any budget for gathered weights and
// gradients as without overlap, and the plan keeps to the budget.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "plan/run_plan.h"
#include "plan/unit_budgets.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

constexpr int64_t kSteps = 2;

RunConfig config_of(const std::string& layout) {
  std::vector<std::string> overrides = {"model.family=llama", "model.layers=4",
                                        "model.width=24",     "model.heads=4",
                                        "model.kv_heads=2",   "model.head_size=4",
                                        "model.ffn=24",       "train.microbatch=1",
                                        "train.sequence=8",   "train.global_batch=8",
                                        "eval.interval=0",    "logging.run_folder=none",
                                        "overlap.mode=auto",  "optimizer.learning_rate=3e-3"};
  std::istringstream words(layout);
  for (std::string word; words >> word;) {
    overrides.push_back(word);
  }
  return parse_config("", "budget", overrides);
}

RunPlan plan_of(const RunConfig& config) {
  validate(config);
  return plan_run(resolve_run(resolved(config), 101));
}

class Budgets : public testing::TestWithParam<const char*> {};

// The least budget holds what is gathered where gathers start at their use; the largest all
// weights, which are then gathered once.
TEST_P(Budgets, ChangeNoBitAndAreKeptTo) {
  const Outcome off = run(config_of(GetParam() + std::string(" overlap.mode=off")), kSteps);
  RunConfig config = config_of(GetParam());
  config.memory.gather_budget = "1B";
  config.overlap.disable_passes = {"prefetch_parameters"};
  const int64_t least = most_gathered_bytes(plan_of(config));
  config.overlap.disable_passes = {};
  config.memory.gather_budget = "";
  const int64_t gradients = most_gradient_bytes(plan_of(config));
  ASSERT_GT(least, 0);
  for (const int64_t bytes : {least, least * 7 / 4, int64_t{1} << 30}) {
    SCOPED_TRACE(bytes);
    config.memory.gather_budget = fmt::format("{}B", bytes);
    config.memory.grad_budget = fmt::format("{}B", bytes == least ? gradients : 3 * gradients);
    const RunPlan plan = plan_of(config);
    EXPECT_LE(most_gathered_bytes(plan), bytes);
    EXPECT_LE(most_gradient_bytes(plan), bytes == least ? gradients : 3 * gradients);
    expect_same_bits(run(config, kSteps), off);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Budgets,
    testing::Values(
        "parallel.ranks=2 parallel.shard=parameters memory.recompute=full "
        "model.tied_embeddings=true",
        "parallel.ranks=4 parallel.pipeline=2 parallel.shard=parameters parallel.schedule=zb-h1 "
        "train.global_batch=4",
        "parallel.ranks=4 parallel.pipeline=2 parallel.shard=parameters model.layers=2 "
        "model.mtp_depth=1 train.global_batch=4",
        "parallel.ranks=4 parallel.shard=parameters parallel.shard_replicas=2 "
        "parallel.shard_over_replicas=true model.experts=4 "
        "model.experts_per_token=2 model.expert_ffn=8 parallel.expert=2",
        "parallel.ranks=2 parallel.shard=parameters model.family=nemotron_h "
        "model.pattern=mamba,mlp,attention,mamba model.mamba_num_heads=4 model.mamba_head_dim=3 "
        "model.ssm_state_size=5 model.mamba_n_groups=2 model.mamba_chunk_size=3 "
        "parallel.grad_reduce_dtype=bfloat16 train.dtype=bfloat16"));

}  // namespace
}  // namespace braid
