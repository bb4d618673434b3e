#include "model/forward.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "base/errors.h"
#include "base/expect_error.h"
#include "model/parameter_shard.h"
#include "ops/attention.h"
#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/embedding.h"
#include "ops/linear.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelSpec llama(int64_t kv_heads = 2) {
  return {.layers = 3,
          .width = 20,
          .heads = 4,
          .kv_heads = kv_heads,
          .head_size = 6,
          .ffn = 24,
          .vocabulary = 300};
}

ModelSpec gpt2() {
  return {.style = kGpt2Style,
          .layers = 3,
          .width = 24,
          .heads = 4,
          .kv_heads = 4,
          .head_size = 6,
          .ffn = 32,
          .vocabulary = 300,
          .max_positions = 16,
          .tied_embeddings = true,
          .qkv_bias = true};
}

ForwardOptions options(const TensorShard& tensor = {},
                       std::optional<StageSlice> stage = std::nullopt) {
  return {.microbatch = 2, .sequence = 8, .tensor = tensor, .stage = stage};
}

std::vector<std::string> ops_of(const std::vector<Node>& nodes, int32_t layer) {
  std::vector<std::string> list;
  for (const Node& node : nodes) {
    if (node.layer == layer) {
      list.push_back(node.spec.op);
    }
  }
  return list;
}

std::map<std::string, int> counts_of(const std::vector<Node>& nodes) {
  std::map<std::string, int> counts;
  for (const Node& node : nodes) {
    ++counts[node.spec.op];
  }
  return counts;
}

const Value& named(const StageGraph& graph, const std::string& name) {
  const auto found =
      std::ranges::find_if(graph.values, [&](const Value& value) { return value.name == name; });
  check(found != graph.values.end(), "no value {}", name);
  return *found;
}

TEST(Forward, OnOneRankCommunicatesNothing) {
  for (const ModelSpec& spec : {llama(), gpt2()}) {
    for (const bool sequence_parallel : {false, true}) {
      StageGraph graph = build_forward(spec, options({.sequence_parallel = sequence_parallel}));
      differentiate(graph);
      EXPECT_THAT(graph.groups, IsEmpty());
      EXPECT_FALSE(graph.stage_input || graph.stage_output);
      EXPECT_FALSE(graph.stage_input_grad || graph.stage_output_grad);
    }
  }
  const StageGraph graph = build_forward(llama(), options());
  EXPECT_THAT(ops_of(graph.forward, 1),
              ElementsAre("add_rmsnorm", "linear", "rope", "attention", "linear", "add_rmsnorm",
                          "linear", "swiglu", "linear"));
  EXPECT_THAT(ops_of(graph.forward, -1),
              ElementsAre("embedding", "add_rmsnorm", "linear", "cross_entropy"));
}

TEST(Forward, NormsResultsOfBlocksAndScalesEmbeddingsAsGemma) {
  ModelSpec spec = llama();
  spec.style = kGemma3Style;
  spec.norm_offset = 1;
  spec.post_norms = true;
  spec.scale_embedding = true;
  const StageGraph graph = build_forward(spec, options({.size = 2, .sequence_parallel = true}));
  EXPECT_THAT(ops_of(graph.forward, 1),
              ElementsAre("add_rmsnorm", "all_gather", "linear", "head_norm", "rope", "attention",
                          "linear", "reduce_scatter", "rmsnorm", "add_rmsnorm", "all_gather",
                          "linear", "geglu", "linear", "reduce_scatter", "rmsnorm"));
  EXPECT_THAT(ops_of(graph.forward, -1),
              ElementsAre("embedding", "reduce_scatter", "scale", "add_rmsnorm", "all_gather",
                          "linear", "cross_entropy_partial", "all_gather", "cross_entropy_merge"));
}

TEST(Forward, EntersAndLeavesEachBlockOnce) {
  const StageGraph graph = build_forward(llama(), options({.size = 2, .index = 1}));
  EXPECT_THAT(graph.groups, ElementsAre("tensor"));
  EXPECT_THAT(
      ops_of(graph.forward, 1),
      ElementsAre("add_rmsnorm", "identity", "linear", "rope", "attention", "linear", "all_reduce",
                  "add_rmsnorm", "identity", "linear", "swiglu", "linear", "all_reduce"));
  EXPECT_THAT(ops_of(graph.forward, -1),
              ElementsAre("embedding", "all_reduce", "add_rmsnorm", "identity", "linear",
                          "cross_entropy_partial", "all_gather", "cross_entropy_merge"));
}

TEST(Forward, HoldsItsRowsBetweenBlocksUnderSequenceParallelism) {
  const TensorShard tensor{.size = 2, .index = 1, .sequence_parallel = true};
  const StageGraph graph = build_forward(gpt2(), options(tensor));
  EXPECT_THAT(
      ops_of(graph.forward, 1),
      ElementsAre("add_layernorm", "all_gather", "linear", "attention", "linear", "reduce_scatter",
                  "add_layernorm", "all_gather", "linear", "gelu", "linear", "reduce_scatter"));
  EXPECT_EQ(named(graph, "layers.1.mlp_norm").shape, (Shape{8, 24}));
  EXPECT_EQ(named(graph, "layers.1.mlp_norm.sum").shape, (Shape{8, 24}));
  EXPECT_EQ(named(graph, "layers.1.mlp.fc1").shape, (Shape{16, 16}));
  EXPECT_EQ(named(graph, "layers.1.mlp.fc2").shape, (Shape{16, 24}));
  EXPECT_EQ(named(graph, "layers.1.mlp.fc2.sum").shape, (Shape{8, 24}));
  EXPECT_EQ(named(graph, "head.logits").shape, (Shape{16, 192}));
}

// What Megatron-LM communicates: one sum per block and direction, as an all-reduce or as its two
// halves; the loss needs its three numbers per row only in the forward.
TEST(Backward, CommunicatesAsMuchAsTheForward) {
  for (const ModelSpec& spec : {llama(), gpt2()}) {
    StageGraph graph = build_forward(spec, options({.size = 2, .index = 0}));
    differentiate(graph);
    auto forward = counts_of(graph.forward);
    auto backward = counts_of(graph.backward);
    EXPECT_EQ(forward["all_reduce"], 1 + 2 * 3);
    EXPECT_EQ(forward["identity"], 2 * 3 + 1);
    EXPECT_EQ(forward["all_gather"], 1);
    EXPECT_EQ(backward["all_reduce"], 2 * 3 + 1);
    EXPECT_EQ(backward["all_gather"] + backward["reduce_scatter"] + backward["identity"], 0);

    graph = build_forward(spec, options({.size = 2, .index = 0, .sequence_parallel = true}));
    differentiate(graph);
    forward = counts_of(graph.forward);
    backward = counts_of(graph.backward);
    EXPECT_EQ(forward["reduce_scatter"], 1 + 2 * 3);
    EXPECT_EQ(forward["all_gather"], 2 * 3 + 1 + 1);
    EXPECT_EQ(backward["all_gather"], 1 + 2 * 3);
    EXPECT_EQ(backward["reduce_scatter"], 2 * 3 + 1);
    EXPECT_EQ(backward["all_reduce"], 0);
  }
}

TEST(Forward, HasTheParametersOfItsShard) {
  for (const ModelSpec& spec : {llama(), llama(1), gpt2()}) {
    for (const int64_t index : {0, 3}) {
      const TensorShard tensor{.size = 4, .index = index};
      const StageGraph graph = build_forward(spec, options(tensor));
      std::set<std::string> used;
      for (const Value& value : graph.values) {
        if (value.kind == ValueKind::kParam) {
          used.insert(value.name);
        }
      }
      std::set<std::string> all;
      for (const Parameter& parameter : model_parameters(spec)) {
        all.insert(parameter.name);
        EXPECT_EQ(named(graph, parameter.name).shape,
                  local_parameter(spec, parameter, {.tensor = tensor}).shape)
            << parameter.name;
      }
      EXPECT_EQ(used, all);
    }
  }
}

TEST(Forward, OneRankAddsBiasesAndPositions) {
  for (const int64_t index : {0, 1}) {
    const StageGraph graph = build_forward(gpt2(), options({.size = 2, .index = index}));
    for (const Node& node : graph.forward) {
      if (node.spec.op == "linear" && node.site != "head.logits") {
        const bool is_summed = node.site.ends_with("proj") || node.site.ends_with("fc2");
        const auto attributes = attributes_of<LinearAttributes>(node.spec);
        EXPECT_TRUE(attributes.has_bias) << node.site;
        EXPECT_EQ(attributes.adds_bias, !is_summed || index == 0) << node.site;
      } else if (node.spec.op == "embedding") {
        const auto attributes = attributes_of<EmbeddingAttributes>(node.spec);
        EXPECT_EQ(attributes.adds_positions, index == 0);
        EXPECT_EQ(attributes.vocabulary, 300);
        EXPECT_EQ(attributes.vocabulary_begin, 192 * index);
      }
    }
  }
}

TEST(Forward, RunsItsOwnHeads) {
  const StageGraph graph = build_forward(llama(2), options({.size = 4, .index = 3}));
  for (const Node& node : graph.forward) {
    if (node.spec.op == "attention") {
      EXPECT_EQ(attributes_of<AttentionAttributes>(node.spec).heads, 1);
      EXPECT_EQ(attributes_of<AttentionAttributes>(node.spec).kv_heads, 1);
    }
  }
}

TEST(Forward, LogitsAreThoseOfTheRanksTokens) {
  ForwardOptions with_logits = options({.size = 2, .index = 1});
  with_logits.end = ForwardEnd::kLogits;
  const StageGraph graph = build_forward(llama(), with_logits);
  EXPECT_EQ(named(graph, "logits").kind, ValueKind::kOutput);
  EXPECT_EQ(named(graph, "logits").shape, (Shape{16, 192}));
}

TEST(Stage, BeginsAndEndsWhereItsNeighboursDo) {
  const ModelSpec spec = llama();
  const StageSlice first{.first_layer = 0, .num_layers = 1, .has_head = false};
  const StageSlice middle{
      .first_layer = 1, .num_layers = 1, .has_embedding = false, .has_head = false};
  const StageSlice last{.first_layer = 2, .num_layers = 1, .has_embedding = false};
  for (const bool sequence_parallel : {false, true}) {
    const TensorShard tensor{.size = 2, .index = 0, .sequence_parallel = sequence_parallel};
    const Shape crossing = sequence_parallel ? Shape{8, 20} : Shape{16, 20};
    for (const StageSlice& stage : {first, middle, last}) {
      StageGraph graph = build_forward(spec, options(tensor, stage));
      differentiate(graph);
      EXPECT_EQ(graph.stage_input.has_value(), !stage.has_embedding);
      EXPECT_EQ(graph.stage_input_grad.has_value(), !stage.has_embedding);
      EXPECT_EQ(graph.stage_output.has_value(), !stage.has_head);
      EXPECT_EQ(graph.stage_output_grad.has_value(), !stage.has_head);
      for (const auto& id : {graph.stage_input, graph.stage_input_grad, graph.stage_output,
                             graph.stage_output_grad}) {
        if (id) {
          EXPECT_EQ(graph.value(*id).shape, crossing);
          EXPECT_EQ(graph.value(*id).kind, ValueKind::kActivation);
        }
      }
    }
  }
}

TEST(Stage, EndsWithTheSumThatTheNextNormWouldMake) {
  const StageGraph graph = build_forward(
      llama(), options({}, StageSlice{.first_layer = 0, .num_layers = 2, .has_head = false}));
  EXPECT_THAT(ops_of(graph.forward, 1),
              ElementsAre("add_rmsnorm", "linear", "rope", "attention", "linear", "add_rmsnorm",
                          "linear", "swiglu", "linear", "add"));
  EXPECT_EQ(graph.forward.back().operands.back(), *graph.stage_output);
}

// Nobody inside a stage writes what comes from outside, and somebody reads it.
TEST(Stage, ReadsItsSeeds) {
  for (const int64_t num_layers : {0, 1}) {
    const StageSlice embedding{.first_layer = 0, .num_layers = num_layers, .has_head = false};
    const StageSlice head{
        .first_layer = 3 - num_layers, .num_layers = num_layers, .has_embedding = false};
    for (const StageSlice& stage : {embedding, head}) {
      StageGraph graph = build_forward(gpt2(), options({}, stage));
      differentiate(graph);
      const ValueId seed = stage.has_head ? *graph.stage_input : *graph.stage_output_grad;
      bool is_read = false;
      for (const auto* nodes : {&graph.forward, &graph.backward}) {
        for (const Node& node : *nodes) {
          for (size_t i = 0; i < node.operands.size(); ++i) {
            is_read = is_read || node.operands[i] == seed;
            EXPECT_FALSE(node.operands[i] == seed && writes(node.spec.operands[i].access));
          }
        }
      }
      EXPECT_TRUE(is_read);
    }
  }
}

TEST(Stage, WithATiedHeadHasItsOwnEmbedding) {
  StageGraph graph = build_forward(
      gpt2(), options({}, StageSlice{.first_layer = 2, .num_layers = 1, .has_embedding = false}));
  differentiate(graph);
  EXPECT_EQ(named(graph, "embedding.tokens").kind, ValueKind::kParam);
  EXPECT_TRUE(std::ranges::any_of(graph.values, [](const Value& value) {
    return value.name == "embedding.tokens" && value.kind == ValueKind::kMainGrad;
  }));
  EXPECT_FALSE(std::ranges::any_of(
      graph.values, [](const Value& value) { return value.name == "embedding.positions"; }));
}

TEST(Forward, RefusesWhatDoesNotFit) {
  EXPECT_THAT(message_of<ConfigError>([] { build_forward(llama(), options({.size = 3})); }),
              HasSubstr("parallel.tensor = 3: must divide model.heads = 4"));
  ForwardOptions odd = options({.size = 2, .sequence_parallel = true});
  odd.microbatch = 1;
  odd.sequence = 7;
  EXPECT_THAT(message_of<ConfigError>([&] { build_forward(llama(), odd); }),
              HasSubstr("must divide the 7 rows of a microbatch"));
  ForwardOptions too_long = options();
  too_long.sequence = 17;
  EXPECT_EQ(message_of<ConfigError>([&] { build_forward(gpt2(), too_long); }),
            "train.sequence = 17: model.max_positions is 16");
  EXPECT_THROW(build_forward(llama(), options({}, StageSlice{.first_layer = 1, .num_layers = 1})),
               InternalError);
}

}  // namespace
}  // namespace braid
