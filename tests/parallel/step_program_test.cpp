#include "parallel/step_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "ir/text.h"
#include "ir/verify.h"

namespace braid {
namespace {

ModelSpec tiny(const ModelStyle& style, bool tied) {
  return {.style = style,
          .layers = 2,
          .width = 24,
          .heads = 3,
          .kv_heads = style == kGpt2Style ? 3 : 1,
          .head_size = 8,
          .ffn = 40,
          .vocabulary = 100,
          .max_positions = 16,
          .tied_embeddings = tied,
          .qkv_bias = style == kGpt2Style};
}

Program train_program(const ModelSpec& model, int data_ranks, const TrainProgramOptions& options) {
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  return build_train_program(model, layout, Mesh({.data = data_ranks}), 0, options);
}

std::map<std::string, int> count_ops(const Program& program) {
  std::map<std::string, int> counts;
  for (const Task& task : program.tasks) {
    ++counts[program.spec(task).op];
  }
  return counts;
}

class StepProgram : public testing::TestWithParam<std::tuple<ModelStyle, bool, DType>> {
 protected:
  ModelSpec model() const { return tiny(std::get<0>(GetParam()), std::get<1>(GetParam())); }
  DType dtype() const { return std::get<2>(GetParam()); }
};

TEST_P(StepProgram, IsAGoodProgram) {
  const Program program = train_program(
      model(), 2, {.microbatch = 2, .sequence = 5, .num_microbatches = 3, .dtype = dtype()});
  EXPECT_TRUE(verify(program).empty()) << verify(program).front().message;
}

TEST_P(StepProgram, SurvivesTheTextForm) {
  const Program program = train_program(
      model(), 2, {.microbatch = 1, .sequence = 4, .num_microbatches = 2, .dtype = dtype()});
  const std::string text = print_program(program);
  EXPECT_EQ(print_program(parse_program(text)), text);
}

TEST_P(StepProgram, BufferNamesAreUnique) {
  const Program program = train_program(
      model(), 1, {.microbatch = 1, .sequence = 4, .num_microbatches = 2, .dtype = dtype()});
  std::set<std::string> names;
  for (const Buffer& buffer : program.buffers) {
    EXPECT_TRUE(names.insert(buffer.name).second) << buffer.name;
  }
}

// Every main grad element is written by exactly one overwriting task before anything adds to it.
TEST_P(StepProgram, FirstAccumulationOfAStepOverwrites) {
  const Program program = train_program(
      model(), 1, {.microbatch = 1, .sequence = 4, .num_microbatches = 3, .dtype = dtype()});
  std::map<std::pair<BufferId, int64_t>, int> overwrites;
  for (const Task& task : program.tasks) {
    const auto ranges = program.operands_of(task);
    for (size_t i = 0; i < ranges.size(); ++i) {
      const bool grad = program.buffers[ranges[i].buffer.index()].role == BufferRole::kMainGrad;
      if (grad && program.spec(task).operands[i].access == Access::kWrite) {
        for (int64_t elem = ranges[i].begin; elem < ranges[i].end; ++elem) {
          ++overwrites[{ranges[i].buffer, elem}];
        }
      }
    }
  }
  int64_t num_grads = 0;
  for (const Buffer& buffer : program.buffers) {
    num_grads += buffer.role == BufferRole::kMainGrad ? buffer.num_elems() : 0;
  }
  EXPECT_EQ(static_cast<int64_t>(overwrites.size()), num_grads);
  EXPECT_TRUE(std::all_of(overwrites.begin(), overwrites.end(),
                          [](const auto& entry) { return entry.second == 1; }));
}

// AdamW must touch every weight once, with decay on matrices and without it on the rest.
TEST_P(StepProgram, OptimizerCoversEveryWeightOnce) {
  const ModelSpec spec = model();
  const ParameterLayout layout = make_parameter_layout(model_parameters(spec));
  const Program program = train_program(
      spec, 1,
      {.microbatch = 1, .sequence = 4, .dtype = dtype(), .optimizer = {.weight_decay = 0.5}});
  std::map<std::string, std::pair<int64_t, int64_t>>
      updated;  // elements with and without decay, by grad buffer
  for (const Task& task : program.tasks) {
    if (program.spec(task).op == "adamw") {
      const BufferRange grad = program.operands_of(task)[0];
      const bool decays =
          std::get<double>(*program.spec(task).find_attribute("weight_decay")) == 0.5;
      auto& [with, without] = updated[program.buffers[grad.buffer.index()].name];
      (decays ? with : without) += grad.end - grad.begin;
    }
  }
  for (const ParameterUnit& unit : layout.units) {
    EXPECT_EQ(updated[main_grad_buffer_name(unit)],
              std::pair(unit.decay_end, unit.num_elems - unit.decay_end));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, StepProgram,
                         testing::Combine(testing::Values(kLlamaStyle, kGpt2Style), testing::Bool(),
                                          testing::Values(DType::kF32, DType::kBF16)));

TEST(TrainProgram, GradientsAreReducedOncePerUnitOverDataRanks) {
  const ModelSpec model = tiny(kLlamaStyle, false);
  const TrainProgramOptions options{.microbatch = 1, .sequence = 4, .num_microbatches = 2};
  EXPECT_EQ(count_ops(train_program(model, 1, options))["all_reduce"], 0);
  EXPECT_EQ(count_ops(train_program(model, 4, options))["all_reduce"],
            4 + 1);  // units, and the losses
}

TEST(TrainProgram, DgradAndWgradAreSeparateTasksOfEachLinear) {
  const ModelSpec model = tiny(kLlamaStyle, false);
  auto counts =
      count_ops(train_program(model, 1, {.microbatch = 1, .sequence = 4, .num_microbatches = 2}));
  const int linears = 2 * (4 * 2 + 1);  // microbatches * (4 per layer, and the head)
  EXPECT_EQ(counts["linear"], linears);
  EXPECT_EQ(counts["linear_dgrad"], linears);
  EXPECT_EQ(counts["linear_wgrad"], linears);
}

TEST(TrainProgram, WithoutUpdateTheGradientsStayReadable) {
  const ModelSpec model = tiny(kGpt2Style, true);
  const Program program = train_program(
      model, 1, {.microbatch = 1, .sequence = 4, .dtype = DType::kF64, .update_weights = false});
  EXPECT_EQ(count_ops(program)["adamw"], 0);
  for (const Buffer& buffer : program.buffers) {
    if (buffer.role == BufferRole::kMainGrad) {
      EXPECT_EQ(buffer.lifetime, Lifetime::kPersistent);
      EXPECT_EQ(buffer.dtype, DType::kF64);
    }
  }
}

Program sharded_program(const ModelSpec& model, const Mesh& mesh, DType reduce_dtype,
                        bool shard_over_replicas = false) {
  const ParallelOptions parallel{.shard = ShardKind::kParameters,
                                 .shard_over_replicas = shard_over_replicas,
                                 .reduce_dtype = reduce_dtype};
  return build_train_program(model, make_rank_layout(model, mesh, 0, parallel), mesh, 0,
                             {.microbatch = 1,
                              .sequence = 4,
                              .num_microbatches = 3,
                              .dtype = DType::kF32,
                              .parallel = parallel});
}

/// By the buffer that is gathered.
std::map<std::string, int> count_gathers(const Program& program) {
  std::map<std::string, int> counts;
  for (const Task& task : program.tasks) {
    if (program.spec(task).op == "all_gather") {
      ++counts[program.buffers[program.operands_of(task).front().buffer.index()].name];
    }
  }
  return counts;
}

// The forward ends with them and the backward begins with them, so a second copy would only take
// memory and time.
TEST(TrainProgram, HeadAndTiedTableAreGatheredOnceForForwardAndBackward) {
  for (const bool tied : {false, true}) {
    const std::map<std::string, int> gathers =
        count_gathers(sharded_program(tiny(kLlamaStyle, tied), Mesh({.data = 4}), DType::kF32));
    EXPECT_EQ(gathers.at("params.embedding"), 3);
    EXPECT_EQ(gathers.at("params.head"), 3);
    EXPECT_EQ(gathers.at("params.layers.0"), 6);
    EXPECT_EQ(gathers.at("params.layers.1"), 6);
  }
}

TEST(TrainProgram, SumsOverReplicasAreInTheDtypeOfTheReduction) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Program program =
        sharded_program(tiny(kLlamaStyle, false), Mesh({.data = 4, .replicas = 2}), dtype);
    int num_sums = 0;
    for (const Task& task : program.tasks) {
      const auto group = group_of(program, program.spec(task));
      if (group && program.groups[group->index()].name == "gradient.replica") {
        EXPECT_EQ(program.spec(task).operands.front().dtype, dtype);
        ++num_sums;
      }
    }
    EXPECT_EQ(num_sums, 4);  // embedding, two layers, head
  }
}

// Instead of the sum, once per step for each of embedding, two layers and head.
TEST(TrainProgram, ReplicasThatUpdatePartsReduceScatterAndGatherOncePerStep) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Program program =
        sharded_program(tiny(kLlamaStyle, false), Mesh({.data = 4, .replicas = 2}), dtype, true);
    std::map<std::string, int> calls;
    for (const Task& task : program.tasks) {
      const auto group = group_of(program, program.spec(task));
      if (group && program.groups[group->index()].name == "gradient.replica") {
        ++calls[program.spec(task).op];
        EXPECT_EQ(program.spec(task).operands.front().dtype,
                  program.spec(task).op == "reduce_scatter" ? dtype : DType::kF32);
      }
    }
    EXPECT_EQ(calls, (std::map<std::string, int>{{"reduce_scatter", 4}, {"all_gather", 4}}));
  }
}

TEST(EvalProgram, IsForwardOnlyWithBuffersOfItsOwn) {
  const ModelSpec model = tiny(kLlamaStyle, false);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const Program program =
      build_eval_program(model, layout, Mesh({.data = 2}), 1, {.microbatch = 1, .sequence = 4});
  EXPECT_TRUE(verify(program).empty());
  for (const Task& task : program.tasks) {
    EXPECT_EQ(task.label.phase, Phase::kForward);
  }
  std::set<std::string> io;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.role == BufferRole::kIo) {
      io.insert(buffer.name);
    }
  }
  EXPECT_EQ(io,
            (std::set<std::string>{"eval.tokens", "eval.labels", "eval.loss_scale", "eval.loss"}));
}

}  // namespace
}  // namespace braid
