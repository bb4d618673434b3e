#include <algorithm>
#include <set>

#include "base/expect_error.h"
#include "ops/activation.h"
#include "ops/adapter.h"
#include "ops/add_gated.h"
#include "ops/attention.h"
#include "ops/attention_step.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/columns.h"
#include "ops/context_attention.h"
#include "ops/context_layout.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/expert_exchange.h"
#include "ops/expert_rows.h"
#include "ops/forward_graph.h"
#include "ops/grouped_linear.h"
#include "ops/head_norm.h"
#include "ops/magnitude.h"
#include "ops/mamba2.h"
#include "ops/mamba2_section.h"
#include "ops/mla_qkv.h"
#include "ops/norm.h"
#include "ops/op.h"
#include "ops/preference.h"
#include "ops/rope.h"
#include "ops/router.h"
#include "ops/row_blocks.h"

namespace braid {
namespace {

ValueId through_every_collective(GraphBuilder& b, ValueId y) {
  const Value like = b.value(y);
  y = all_reduce(b, identity(b, y, "tensor", "identity"), "tensor", "sum");
  y = reduce_scatter(b, all_gather(b, y, "tensor", 2, "gathered"), "tensor", 2, "scattered");
  y = all_to_all(b, y, "context", 2, "exchanged");
  y = reduce(b, broadcast(b, y, "context", 0, "root"), "context", 1, "reduced");
  y = ring_shift(b, y, "context", 1, "shifted");
  const MessageEnd next{.group = "pipeline", .peer = 1};
  send(b, y, next, "sent");
  return add(b, y, recv(b, like.dtype, like.shape, next, "received"), "met");
}

/// Attention of one of 2 x 2 context ranks, by each method between the outer ones.
ValueId over_context_ranks(GraphBuilder& b, ValueId qkv) {
  ContextAttention context{
      .core = {.heads = 2, .kv_heads = 2, .head_size = 4, .sequence = kSequence, .scale = 0},
      .inner = 2,
      .outer = 2,
      .outer_index = 1};
  const ValueId ring = context_attention(b, qkv, context, "ring");
  context.method = ContextMethod::kAllGather;
  return add(b, ring, context_attention(b, qkv, context, "all_gather"), "methods");
}

/// A router of 6 experts whose weights are logits of a loss, and its own losses.
void add_router(Forward& forward, ValueId x) {
  GraphBuilder& b = forward.builder();
  const ValueId logits = router_linear(b,
                                       {.x = x,
                                        .weight = forward.param("router", {6, 12}),
                                        .logit_bias = forward.param("logit_bias", {6})},
                                       "router");
  const DType wide = b.value(logits).dtype;
  const auto wide_value = [&](const char* name, int64_t size, ValueKind kind) {
    return b.named_value({.name = name, .dtype = wide, .shape = {size}, .kind = kind});
  };
  const ValueId scale = wide_value("loss_scale", 1, ValueKind::kInput);
  const ValueId counts = b.named_value(
      {.name = "counts", .dtype = DType::kF32, .shape = {6}, .kind = ValueKind::kInput});
  router_losses(b, {.logits = logits, .counts = counts, .loss_scale = scale},
                {.balance = 0.01, .z = 0.001}, "router_losses");
  const RouteResult choice = route(b, logits, forward.param("router_bias", {6}),
                                   {.rule = {.per_token = 2, .sigmoid = true}}, "route");
  cross_entropy(b,
                {.logits = choice.weights,
                 .labels = forward.tokens("labels"),
                 .loss_scale = scale,
                 .loss = wide_value("routed_loss", 1, ValueKind::kOutput)},
                {.vocabulary = 2}, "routed_loss");
}

/// A loss of two sequences, over two ranks that hold columns and two that share the sequences.
void add_pairs(Forward& forward, ValueId logits) {
  const DType wide = accumulator_dtype(forward.builder().value(logits).dtype);
  const auto number = [&](const char* name, const Shape& shape, ValueKind kind) {
    return forward.builder().named_value(
        {.name = name, .dtype = wide, .shape = shape, .kind = kind});
  };
  preference_loss(forward.builder(),
                  {.logits = logits,
                   .labels = forward.tokens("labels"),
                   .reference = number("reference", {2, 2}, ValueKind::kInput),
                   .loss = number("pair_loss", {1}, ValueKind::kOutput),
                   .figures = number("preference", {5}, ValueKind::kOutput),
                   .shard = {.vocabulary = kVocabulary},
                   .group = "tensor",
                   .num_ranks = 2,
                   .token_groups = {"context.inner"}},
                  "pair_loss");
}

/// A group of one rank with room for all rows.
ValueId through_other_ranks(GraphBuilder& b, const RowsToDispatch& rows) {
  const int64_t num_rows = b.value(rows.x).shape[0];
  const ExpertGroup group{.name = "expert.exchange", .experts = 3, .max_rows = num_rows};
  const DispatchedRows there = dispatch_rows(b, rows, group, std::nullopt, "dispatched");
  const Value like = b.value(there.x);
  const ValueId w = b.named_value({.name = "experts.own",
                                   .dtype = like.dtype,
                                   .shape = {3 * 2 * like.shape[1], like.shape[1]},
                                   .kind = ValueKind::kParam});
  const ValueId y = grouped_linear(b, there.x, w, there.offsets, "own");
  return combine_rows(b, routed_swiglu(b, y, there.weights, there.offsets, "own.swiglu"),
                      rows.offsets_of_all, num_rows, group, "combined");
}

/// The same in blocks.
ValueId through_blocks(GraphBuilder& b, const RowsToDispatch& rows) {
  const int64_t num_rows = b.value(rows.x).shape[0];
  const ExpertGroup group{
      .name = "expert.exchange", .experts = 3, .max_rows = num_rows, .block_rows = num_rows};
  const DispatchedRows there = dispatch_by_blocks(b, rows, group, std::nullopt, "in_blocks");
  const ValueId y = routed_relu2(b, there.x, there.weights, there.offsets, "in_blocks.relu2");
  return combine_by_blocks(b, y, rows.offsets_of_all, num_rows, group, "out_of_blocks");
}

/// Three experts, of which each token has two.
ValueId through_experts(Forward& forward, ValueId x) {
  GraphBuilder& b = forward.builder();
  const Shape pairs{kRows, 2};
  const auto input = [&](const char* name, DType dtype) {
    return b.named_value({.name = name, .dtype = dtype, .shape = pairs, .kind = ValueKind::kInput});
  };
  const ExpertRows rows = sort_rows(b, input("experts", DType::kI32), 3, std::nullopt, "rows");
  ValueId y = gather_rows(b, x, rows, "gathered");
  y = grouped_linear(b, y, forward.param("experts.fc1", {3 * 16, 12}), rows.offsets, "fc1");
  const ValueId weights =
      sort_weights(b, input("weights", accumulator_dtype(b.value(x).dtype)), rows, "weights");
  y = routed_swiglu(b, y, weights, rows.offsets, "swiglu");
  y = routed_relu2(b, y, weights, rows.offsets, "relu2");
  y = through_other_ranks(b, {.x = y, .weights = weights, .offsets_of_all = rows.offsets});
  y = through_blocks(b, {.x = y, .weights = weights, .offsets_of_all = rows.offsets});
  y = grouped_linear(b, y, forward.param("experts.fc2", {3 * 12, 8}), rows.offsets, "fc2");
  return sum_rows(b, y, rows, "summed");
}

/// Latent attention whose parts are columns of x, of 12.
ValueId through_latents(GraphBuilder& b, ValueId x) {
  const auto columns = [&](int64_t begin, int64_t size, const char* site) {
    return take_columns(b, x, {.width = 12, .begin = begin, .size = size}, site);
  };
  return mla_qkv(
      b, {.q = columns(0, 6, "q"), .kv = columns(4, 8, "kv"), .k_rope = columns(2, 2, "k_rope")},
      {.heads = 2, .plain = 1, .rotated = 2, .value = 3, .head_size = 4, .sequence = kSequence},
      "latents");
}

/// A state space whose rows have 2 heads of 4 elements: 8 columns of results. Once over whole
/// sequences, and once over sections that two context ranks hold.
ValueId through_states(Forward& forward, ValueId x) {
  const Mamba2Attributes a{
      .sequence = kSequence, .heads = 2, .head_size = 4, .groups = 1, .state = 3, .chunk = 2};
  const ValueId rows = linear(forward.builder(), x, forward.param("in_proj", {a.row_elems(), 12}),
                              std::nullopt, "in_proj");
  const Mamba2Operands operands{.zxbcdt = rows,
                                .conv_weight = forward.param("conv", {a.convolved(), 4}),
                                .conv_bias = forward.param("conv_bias", {a.convolved()}),
                                .dt_bias = forward.param("dt_bias", {2}),
                                .a_log = forward.param("a_log", {2}),
                                .skip = forward.param("skip", {2}),
                                .norm_weight = forward.param("mamba_norm", {8})};
  const ValueId whole = mamba2(forward.builder(), operands, a, "states");
  const ValueId sections = mamba2_over_context(
      forward.builder(), operands, a, {.ranks = 2, .index = 1, .inner = 2}, "context", "sections");
  return add(forward.builder(), whole, sections, "both_states");
}

/// A graph with every op that models are made of: both families' blocks one after the other.
void build_every_op(Forward& forward) {
  GraphBuilder& b = forward.builder();
  const auto norm_weight = [&](const char* name) { return forward.param(name, {12}); };
  ValueId x = embedding(b, forward.tokens("tokens"), forward.param("table", {kVocabulary, 12}),
                        forward.param("positions", {kSequence, 12}), kSequence, "embedding");
  ValueId y = rmsnorm(b, x, norm_weight("n1"), 1e-5, "norm1");
  y = linear(b, y, forward.param("qkv", {24, 12}), forward.param("qkv_bias", {24}), "qkv");
  const RopeAttributes heads{
      .heads = 2, .kv_heads = 2, .head_size = 4, .sequence = kSequence, .theta = 1e4};
  y = head_norm(
      b,
      {.qkv = y, .query_weight = forward.param("qn", {4}), .key_weight = forward.param("kn", {4})},
      {.heads = 2, .kv_heads = 2, .head_size = 4}, "head_norm");
  y = rope(b, y, heads, "rope");
  const ValueId qkv = y;
  const AttentionAttributes core{
      .heads = 2, .kv_heads = 2, .head_size = 4, .sequence = kSequence, .scale = 0};
  y = attention(b, y, core, "core");
  y = add(b, y, over_context_ranks(b, qkv), "attentions");
  y = add(b, y, attention(b, through_latents(b, x), core, "latent_core"), "with_latents");
  y = add(b, y, through_states(forward, x), "with_states");
  y = linear(b, y, forward.param("proj", {12, 8}), std::nullopt, "proj");
  AddNormResult sum = add_rmsnorm(b, y, x, norm_weight("n2"), 1e-5, "norm2");
  y = swiglu(b, linear(b, sum.normed, forward.param("fc1", {16, 12}), std::nullopt, "fc1"),
             "swiglu");
  const ValueId gated = geglu(
      b, linear(b, sum.normed, forward.param("fc1g", {16, 12}), std::nullopt, "fc1g"), "geglu");
  y = add(b, y, scale(b, gated, 0.5, "scaled"), "gated_twice");
  y = linear(b, y, forward.param("fc2", {12, 8}), std::nullopt, "fc2");
  sum = add_layernorm(b, y, sum.sum, norm_weight("n3"), norm_weight("b3"), 1e-5, "norm3");
  y = add(b, gelu(b, sum.normed, "gelu"), relu2(b, sum.normed, "relu2"), "activated");
  y = add(b, y, sum.sum, "add");
  y = layernorm(b, y, norm_weight("n4"), norm_weight("b4"), 1e-5, "norm4");
  add_router(forward, y);
  const ValueId gate = router_linear(b, {.x = y, .weight = forward.param("gate", {1, 12})}, "gate");
  y = add_gated(b, y, {.x = through_experts(forward, y), .z = gate}, "gated");
  y = add_adapters(b, y, std::array{Adapter{.z = y, .columns = {}}}, 2.0, "adapted");
  const std::array rows{Adapter{.z = forward.input("lora_b", {12, 2}), .columns = {}}};
  const AdaptedWeight weight{.weight = forward.input("w", {12, 12}),
                             .a = forward.input("lora_a", {2, 12}),
                             .adapters = rows};
  y = apply_magnitudes(
      b, y,
      {.change = forward.param("change", {12}), .squares = adapted_squares(b, weight, "squares")},
      "magnitudes");
  y = through_every_collective(b, y);
  forward.sharded_loss_of_logits(
      linear(b, y, forward.param("head_shard", {kVocabulary / 2, 12}), std::nullopt, "shard"));
  add_pairs(forward,
            linear(b, y, forward.param("pairs", {kVocabulary, 12}), std::nullopt, "pairs"));
  forward.loss_of(y);
}

/// Whether the backward of mamba2_section is that of this op, too.
bool is_of_section_backward(const OpDefinition& op) {
  return &op == &kMamba2LastInputsOp || &op == &kNeighbourSectionsOp ||
         &op == &kMamba2SectionStatesOp || &op == &kCarryStatesOp;
}

TEST(EveryBackward, EmitsNodesThatTheirOpsAccept) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    Forward forward(dtype);
    build_every_op(forward);
    const StageGraph& graph = forward.differentiated();
    std::set<std::string> used;
    for (const Node& node : graph.forward) {
      used.insert(node.spec.op);
    }
    for (const OpDefinition* op : all_ops()) {
      const bool has_backward =
          op->backward != nullptr || op == &kCrossEntropyPartialOp ||  // cross_entropy_merge's
          op == &kAttentionStepOp || op == &kPackKvOp ||               // attention_finish's
          op == &kSortRowsOp ||                                        // its results are integers
          is_of_section_backward(*op) || op == &kAdaptedSquaresOp ||   // they count as constants
          (op == &kCastOp && dtype == DType::kBF16);  // of a bias, whose main grad counts choices
      EXPECT_EQ(has_backward, used.contains(std::string(op->name)))
          << op->name << ": add it to build_every_op if it has a backward";
    }
    for (const Node& node : graph.backward) {
      EXPECT_NO_THROW(check_spec(node.spec));
      ASSERT_EQ(node.operands.size(), node.spec.operands.size());
      for (size_t i = 0; i < node.operands.size(); ++i) {
        EXPECT_EQ(node.spec.operands[i].shape, graph.value(node.operands[i]).shape);
        EXPECT_EQ(node.spec.operands[i].dtype, graph.value(node.operands[i]).dtype);
      }
    }
  }
}

// Program order is the meaning: what a backward node reads must have been written before.
TEST(EveryBackward, ReadsOnlyWhatIsThere) {
  Forward forward;
  build_every_op(forward);
  const StageGraph& graph = forward.differentiated();
  std::set<ValueId> written;
  const auto run = [&](const Node& node) {
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const Value& value = graph.value(node.operands[i]);
      if (value.kind == ValueKind::kActivation && reads(node.spec.operands[i].access)) {
        EXPECT_TRUE(written.contains(node.operands[i])) << describe(graph, node);
      }
    }
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (writes(node.spec.operands[i].access)) {
        const bool is_first = written.insert(node.operands[i]).second;
        EXPECT_TRUE(is_first || reads(node.spec.operands[i].access)) << describe(graph, node);
      }
    }
  };
  std::for_each(graph.forward.begin(), graph.forward.end(), run);
  std::for_each(graph.backward.begin(), graph.backward.end(), run);
}

TEST(EveryBackward, GivesEachParameterOneMainGrad) {
  Forward forward;
  build_every_op(forward);
  std::multiset<std::string> params;
  std::multiset<std::string> main_grads;
  for (const Value& value : forward.differentiated().values) {
    if (value.kind == ValueKind::kParam) {
      params.insert(value.name);
    } else if (value.kind == ValueKind::kMainGrad) {
      main_grads.insert(value.name);
    }
  }
  EXPECT_EQ(params, main_grads);
}

}  // namespace
}  // namespace braid
