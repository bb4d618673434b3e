#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/op.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

RunConfig narrow_config() {
  RunConfig config = small_config();
  config.train.dtype = "bfloat16";
  config.optimizer.main_grads_dtype = "bfloat16";
  config.parallel.grad_reduce_dtype = "bfloat16";
  return config;
}

RunConfig wide_config() {
  RunConfig config = narrow_config();
  config.optimizer.main_grads_dtype = "float32";
  return config;
}

RunConfig on_ranks(RunConfig config, int64_t ranks, const std::string& shard) {
  config.parallel.ranks = ranks;
  config.parallel.shard = shard;
  return config;
}

// Four microbatches, so that gradients are rounded four times.
TEST(Bf16MainGrads, TrainLikeFp32) {
  for (const std::string name : {"adamw", "lion", "sgd", "muon"}) {
    SCOPED_TRACE(name);
    RunConfig wide = wide_config();
    RunConfig narrow = narrow_config();
    for (RunConfig* const config : {&wide, &narrow}) {
      config->optimizer.name = name;
      config->optimizer.learning_rate = name == "sgd" ? 0.1 : name == "lion" ? 1e-3 : 3e-3;
    }
    const Outcome expected = run(wide, 60);
    const Outcome outcome = run(narrow, 60);
    EXPECT_LT(outcome.losses.back(), 0.8 * outcome.losses.front());
    EXPECT_NEAR(outcome.losses.back(), expected.losses.back(), 0.02 * expected.losses.back());
    EXPECT_NE(outcome.losses, expected.losses) << "no gradient is narrower";
  }
}

// Products that are cut into pieces are of other sizes, so libraries may sum in another order;
// passes in mode "auto" do not cut them.
TEST(Bf16MainGrads, OverlapChangesNoBit) {
  for (const std::string shard : {"none", "optimizer", "gradients", "parameters"}) {
    SCOPED_TRACE(shard);
    RunConfig config = on_ranks(narrow_config(), 2, shard);
    config.overlap.mode = "off";
    const Outcome expected = run(config, 4);
    config.overlap.mode = "auto";
    expect_same_bits(run(config, 4), expected);
  }
}

TEST(Bf16MainGrads, AResumedRunHasTheSameBits) {
  const RunConfig config = on_ranks(narrow_config(), 2, "gradients");
  const Outcome whole = run(config, 6);
  const Outcome first = run(config, 3);
  const Outcome second = run(config, 3, {}, {.state = &first.state, .steps_done = 3});
  EXPECT_EQ(second.state.weights, whole.state.weights);
  EXPECT_EQ(second.state.exp_avg_sq, whole.state.exp_avg_sq);
  EXPECT_EQ(second.losses, std::vector(whole.losses.begin() + 3, whole.losses.end()));
}

/// Bytes of the buffers of gradients of rank 0, and of what is persistent.
struct PlannedBytes {
  int64_t main_grads = 0;
  int64_t persistent = 0;
  int64_t main_grad_elems = 0;
};

PlannedBytes planned_bytes(const RunConfig& config) {
  validate(config);
  const RunPlan plan = plan_run(resolve_run(resolved(config), 50));
  PlannedBytes bytes;
  for (const Buffer& buffer : plan.ranks.front().programs.front().buffers) {
    if (buffer.role == BufferRole::kMainGrad) {
      bytes.main_grads += buffer.size_bytes();
      bytes.main_grad_elems += buffer.num_elems();
    } else if (buffer.lifetime == Lifetime::kPersistent) {
      bytes.persistent += buffer.size_bytes();
    }
  }
  return bytes;
}

TEST(Bf16MainGrads, TakeTwoBytesPerParameterLess) {
  for (const std::string shard : {"none", "optimizer", "gradients", "parameters"}) {
    SCOPED_TRACE(shard);
    const PlannedBytes wide = planned_bytes(on_ranks(wide_config(), 2, shard));
    const PlannedBytes narrow = planned_bytes(on_ranks(narrow_config(), 2, shard));
    EXPECT_EQ(narrow.main_grad_elems, wide.main_grad_elems);
    EXPECT_GT(narrow.main_grad_elems, 0);
    EXPECT_EQ(wide.main_grads - narrow.main_grads, 2 * narrow.main_grad_elems);
    EXPECT_EQ(narrow.persistent, wide.persistent);
  }
}

/// Bytes of reductions of gradients over ranks, and bytes that updates read.
struct MovedBytes {
  double reductions = 0;
  double updates = 0;
};

MovedBytes moved_bytes(const RunConfig& config) {
  const RunPlan plan = plan_run(resolve_run(resolved(config), 50));
  const Program& program = plan.ranks.front().programs.front();
  MovedBytes bytes;
  for (const Task& task : program.tasks) {
    const OpSpec& spec = program.spec(task);
    if (communicates_as(spec, CommOp::kReduceScatter)) {
      bytes.reductions += spec_cost(spec).comm_bytes;
    }
    if (spec.op == "adamw") {
      bytes.updates += spec_cost(spec).bytes_read;
    }
  }
  return bytes;
}

// So simulations price them: half the bytes between ranks, 2 bytes fewer of 16 to read.
TEST(Bf16MainGrads, MoveFewerBytes) {
  RunConfig wide = on_ranks(wide_config(), 2, "optimizer");
  wide.parallel.grad_reduce_dtype = "float32";
  const MovedBytes before = moved_bytes(wide);
  const MovedBytes after = moved_bytes(on_ranks(narrow_config(), 2, "optimizer"));
  EXPECT_GT(after.reductions, 0);
  EXPECT_EQ(before.reductions, 2 * after.reductions);
  EXPECT_NEAR(after.updates, before.updates * 14 / 16, 0.001 * before.updates);
}

// FP8 products write bf16 gradients, too.
TEST(Bf16MainGrads, FitFp8) {
  for (const std::string recipe : {"tensor", "block", "mxfp8"}) {
    SCOPED_TRACE(recipe);
    RunConfig wide = wide_config();
    RunConfig narrow = narrow_config();
    for (RunConfig* const config : {&wide, &narrow}) {
      config->model.width = 128;
      config->model.ffn = 128;
      config->model.heads = 2;
      config->model.kv_heads = 1;
      config->train.fp8 = recipe;
      config->train.sequence = 64;
      config->train.global_batch = 4;
      config->optimizer.learning_rate = 1e-3;
    }
    const Outcome expected = run(wide, 8);
    const Outcome outcome = run(narrow, 8);
    EXPECT_NEAR(outcome.losses.back(), expected.losses.back(), 0.02 * expected.losses.back());
    EXPECT_NE(outcome.state.weights, expected.state.weights);
  }
}

}  // namespace
}  // namespace braid
