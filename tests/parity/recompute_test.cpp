// Activations that are made again, or wait on the host, under every kind of layout: not a bit of
// the training changes, and weights are not gathered more often, or kept for longer, for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ops/op.h"
#include "parity/layout_config.h"
#include "plan/run_plan.h"
#include "support/thinned.h"
#include "verify/layout_run.h"

namespace braid {
namespace {

/// Losses of two steps and the weights after them.
struct Trained {
  int64_t num_repeated = 0;  ///< tasks, of all ranks
  std::vector<double> losses;
  UnitValues weights;
};

Trained train(const RunConfig& config) {
  const RunSpec spec = resolve_run(config, 0);
  LayoutRun run(plan_run(spec), layout_run_options(spec, 1));
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal(0.0, 0.2);
  UnitValues weights;
  for (const ParameterUnit& unit : run.plan().layout.units) {
    std::vector<double>& values = weights.emplace_back();
    for (int64_t i = 0; i < unit.num_elems; ++i) {
      values.push_back(static_cast<float>(normal(random)));
    }
  }
  run.set_weights(weights);
  TokenBatch batch{.num_sequences = config.train.global_batch, .sequence = config.train.sequence};
  for (int64_t i = 0; i < batch.num_sequences * batch.sequence; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(random() % 101));
    batch.labels.push_back(static_cast<int32_t>(random() % 101));
  }
  Trained trained;
  for (const RankPlan& rank : run.plan().ranks) {
    for (const PassRecord& pass : rank.passes) {
      trained.num_repeated += pass.name == "recompute" ? pass.report.num_changes : 0;
    }
  }
  for (int step = 0; step < 2; ++step) {
    trained.losses.push_back(run.step(batch, std::array{1e-2f, 0.1f, 0.05f}));
  }
  trained.weights = run.weights();
  return trained;
}

class RecomputeOf : public testing::TestWithParam<Layout> {};

TEST_P(RecomputeOf, ChangesNoBit) {
  const RunConfig plain = config_of(GetParam());
  const Trained expected = train(plain);
  EXPECT_NE(expected.losses[0], expected.losses[1]);
  EXPECT_EQ(expected.num_repeated, 0);
  for (const char* const policy : {"norms", "attention", "compute", "full"}) {
    for (const int64_t offload_layers : {0, 3}) {
      RunConfig config = plain;
      config.memory.recompute = policy;
      config.memory.offload_layers = offload_layers;
      config.memory.offload_min_bytes = offload_layers > 0 ? 1 : config.memory.offload_min_bytes;
      const Trained actual = train(config);
      EXPECT_GT(actual.num_repeated, 0);
      EXPECT_EQ(actual.losses, expected.losses) << policy << ", offload " << offload_layers;
      EXPECT_TRUE(actual.weights == expected.weights) << policy << ", offload " << offload_layers;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, RecomputeOf,
    testing::ValuesIn(thinned(
        std::vector<Layout>{
            Layout{kLlamaModel, "ranks=2 context=2"},
            Layout{kGpt2Model, "ranks=2 context=2 context_method=a2a"},
            Layout{kGpt2Model, "ranks=2 context=2 context_method=all_gather shard=parameters"},
            Layout{kLlamaModel, "ranks=2 tensor=2 sequence_parallel=true"},
            Layout{kGpt2Model, "ranks=4 tensor=2 shard=parameters"},
            Layout{kLlamaModel, "ranks=2 pipeline=2 schedule=zb-h1"},
            Layout{kQwenModel,
                   "ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved shard=parameters"},
            Layout{kLlamaModel,
                   "ranks=8 tensor=2 context=2 pipeline=2 virtual_stages=2 schedule=zb-v "
                   "sequence_parallel=true shard=gradients train.dtype=bfloat16"},
            Layout{kExpertsModel, "ranks=2 expert=2"},
            Layout{kSharedExpertModel, "ranks=4 expert=4 moe.exchange=hosts moe.exchange_hosts=2"},
            Layout{kHybridExpertsModel, "ranks=4 tensor=2 sequence_parallel=true expert=2"}},
        8)));

/// How often a rank's training step has each op that communicates in layers.
std::map<std::string, int64_t> communication_of(RunConfig config, const std::string& policy) {
  config.memory.recompute = policy;
  const RunPlan plan = plan_run(resolve_run(config, 0));
  const Program& program = plan.ranks.front().programs[kTrainProgram];
  std::map<std::string, int64_t> counts;
  for (const Task& task : program.tasks) {
    const OpDefinition& op = find_op(program.spec(task).op);
    if (op.op_class == OpClass::kCommunication && task.label.layer >= 0) {
      ++counts[std::string(op.name)];
    }
  }
  return counts;
}

class CommunicationWithRecompute : public testing::TestWithParam<Layout> {};

// But for gathers, which "norms" repeats.
TEST_P(CommunicationWithRecompute, IsRepeatedByFullOnly) {
  const RunConfig config = config_of(GetParam());
  auto plain = communication_of(config, "none");
  auto compute = communication_of(config, "compute");
  auto full = communication_of(config, "full");
  for (auto* counts : {&plain, &compute, &full}) {
    counts->erase("all_gather");
  }
  EXPECT_EQ(compute, plain);
  EXPECT_NE(full, plain);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, CommunicationWithRecompute,
    testing::Values(Layout{kExpertsModel, "ranks=2 expert=2"},
                    Layout{kExpertsModel, "ranks=2 expert=2 moe.exchange=blocks"},
                    Layout{kSharedExpertModel,
                           "ranks=4 expert=4 moe.exchange=hosts moe.exchange_hosts=2"},
                    Layout{kLlamaModel, "ranks=2 tensor=2"},
                    Layout{kLlamaModel, "ranks=2 tensor=2 sequence_parallel=true"},
                    Layout{kGpt2Model, "ranks=2 context=2 context_method=a2a"}));

/// Gathered weights in a rank's training step.
struct Gathered {
  int64_t num_gathers = 0;
  int64_t peak_bytes = 0;     ///< at one place of program order
  int64_t largest_bytes = 0;  ///< of one unit
};

Gathered gathered_of(const Program& program) {
  struct Range {
    size_t first = 0;
    size_t last = 0;
  };
  std::map<uint32_t, Range> uses;
  Gathered gathered;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    const OpSpec& spec = program.spec(task);
    const auto ranges = program.operands_of(task);
    for (size_t operand = 0; operand < ranges.size(); ++operand) {
      const BufferId buffer = ranges[operand].buffer;
      if (program.buffers[buffer.index()].role == BufferRole::kGathered) {
        gathered.num_gathers +=
            spec.op == "all_gather" && writes(spec.operands[operand].access) ? 1 : 0;
        uses.try_emplace(buffer.value, Range{i, i}).first->second.last = i;
      }
    }
  }
  std::vector<int64_t> changes(program.tasks.size() + 1);
  for (const auto& [buffer, range] : uses) {
    const int64_t bytes = program.buffers[buffer].size_bytes();
    gathered.largest_bytes = std::max(gathered.largest_bytes, bytes);
    changes[range.first] += bytes;
    changes[range.last + 1] -= bytes;
  }
  int64_t live = 0;
  for (const int64_t change : changes) {
    live += change;
    gathered.peak_bytes = std::max(gathered.peak_bytes, live);
  }
  return gathered;
}

class GatheredWeights : public testing::TestWithParam<Layout> {};

// The backward gathers a layer's weights in any case: the repeated forward reads those.
TEST_P(GatheredWeights, AreNeitherKeptForRecomputeNorGatheredForIt) {
  RunConfig config = config_of(GetParam());
  const RunPlan plain = plan_run(resolve_run(config, 0));
  for (const char* const policy : {"norms", "attention", "compute", "full"}) {
    config.memory.recompute = policy;
    const RunPlan recomputed = plan_run(resolve_run(config, 0));
    for (size_t rank = 0; rank < plain.ranks.size(); ++rank) {
      const Gathered before = gathered_of(plain.ranks[rank].programs[kTrainProgram]);
      const Gathered after = gathered_of(recomputed.ranks[rank].programs[kTrainProgram]);
      EXPECT_GT(before.num_gathers, 0);
      EXPECT_EQ(after.num_gathers, before.num_gathers) << policy << ", rank " << rank;
      EXPECT_LE(after.peak_bytes, before.peak_bytes + before.largest_bytes)
          << policy << ", rank " << rank;
      EXPECT_LE(recomputed.ranks[rank].memory.step_bytes,
                plain.ranks[rank].memory.step_bytes + before.largest_bytes)
          << policy << ", rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GatheredWeights,
    testing::ValuesIn(thinned<Layout>(
        {Layout{kLlamaModel, "ranks=2 shard=parameters"},
         Layout{kGpt2Model, "ranks=2 shard=parameters"},
         Layout{kLlamaModel, "ranks=4 tensor=2 sequence_parallel=true shard=parameters"},
         Layout{kLlamaModel, "ranks=4 pipeline=2 shard=parameters schedule=zb-h1"},
         Layout{kGpt2Model, "ranks=4 pipeline=2 shard=parameters"},
         Layout{kLlamaModel, "ranks=2 context=2 shard=parameters bucket=virtual_stage"},
         Layout{kQwenModel,
                "ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved "
                "shard=parameters"}},
        3)));

}  // namespace
}  // namespace braid
