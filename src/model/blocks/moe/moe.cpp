#include <algorithm>
#include <array>

#include "base/errors.h"
#include "model/block_builder.h"
#include "model/blocks/registry.h"
#include "model/families.h"
#include "ops/activation.h"
#include "ops/add_gated.h"
#include "ops/collectives.h"
#include "ops/drop_rows.h"
#include "ops/elementwise.h"
#include "ops/expert_exchange.h"
#include "ops/expert_rows.h"
#include "ops/grouped_linear.h"
#include "ops/host_slots.h"
#include "ops/operand_checker.h"
#include "ops/router.h"
#include "ops/row_blocks.h"

namespace braid {
namespace {

constexpr std::array kNeededSizes = {SizeKey{"experts", &ModelSpec::experts},
                                     SizeKey{"experts_per_token", &ModelSpec::experts_per_token},
                                     SizeKey{"expert_ffn", &ModelSpec::expert_ffn}};
constexpr int64_t kMaxExperts = 512;  // of the kernels
constexpr int64_t kMaxExpertsPerToken = 32;

void check_groups(const ModelSpec& spec) {
  const RouterSpec& router = spec.router;
  require_positive_size("router_groups", router.groups);
  require_positive_size("router_kept_groups", router.kept_groups);
  if (spec.experts % router.groups != 0) {
    throw_config_error("model.router_groups = {}: must divide model.experts = {}", router.groups,
                       spec.experts);
  }
  if (router.kept_groups > router.groups) {
    throw_config_error("model.router_kept_groups = {}: must be at most model.router_groups = {}",
                       router.kept_groups, router.groups);
  }
  const int64_t reachable = spec.experts / router.groups * router.kept_groups;
  if (spec.experts_per_token > reachable) {
    throw_config_error(
        "model.experts_per_token = {}: must be at most {}, the experts of "
        "model.router_kept_groups = {} groups",
        spec.experts_per_token, reachable, router.kept_groups);
  }
}

void check_sizes(const ModelSpec& spec) {
  require_positive_size("experts", spec.experts);
  require_positive_size("experts_per_token", spec.experts_per_token);
  require_positive_size("expert_ffn", spec.expert_ffn);
  if (spec.experts > kMaxExperts) {
    throw_config_error("model.experts = {}: must be at most {}", spec.experts, kMaxExperts);
  }
  const int64_t most = std::min(spec.experts, kMaxExpertsPerToken);
  if (spec.experts_per_token > most) {
    throw_config_error("model.experts_per_token = {}: must be at most {}", spec.experts_per_token,
                       most);
  }
  if (spec.style.activation == Activation::kGelu || spec.style.activation == Activation::kGeglu) {
    throw_config_error(
        "model.family = \"{}\": experts have SwiGLU or squared ReLU; set model.family = \"llama\" "
        "or \"nemotron_h\", or use no \"moe\" in model.pattern",
        family_name(spec.style));
  }
  if (spec.shared_gate && spec.shared_ffn == 0) {
    throw_config_error(
        "model.shared_gate = true: model.shared_ffn is 0, so there is no result to scale; set "
        "model.shared_ffn, or model.shared_gate = false");
  }
  check_groups(spec);
}

/// Tensor ranks do not split experts, but the shared expert, like an MLP.
std::optional<std::string> tensor_fault(const ModelSpec& spec, int64_t ranks) {
  return spec.shared_ffn % ranks == 0
             ? std::nullopt
             : std::optional(fmt::format("must divide model.shared_ffn = {}", spec.shared_ffn));
}

/// Rows of an expert's first matrix.
int64_t fc1_rows(const ModelSpec& spec, int64_t ffn) {
  return spec.style.is_gated() ? 2 * ffn : ffn;
}

void add_parameters(ParameterList& list, const ModelSpec& spec) {
  list.linear("moe.router", {.out = spec.experts, .in = spec.width, .split = TensorSplit::kNorm});
  if (spec.router.logit_bias) {
    list.logit_bias("moe.router", spec.experts);
  }
  if (spec.router.bias) {
    list.router_bias("moe.router", spec.experts);
  }
  list.experts("moe.fc1", {.experts = spec.experts,
                           .out = fc1_rows(spec, spec.expert_ffn),
                           .in = spec.width,
                           .gate_up_rows = spec.style.is_gated()});
  list.experts("moe.fc2", {.experts = spec.experts,
                           .out = spec.width,
                           .in = spec.expert_ffn,
                           .split = TensorSplit::kExpertColumns,
                           .std_scale = list.residual_scale()});
  if (spec.shared_ffn > 0) {
    list.linear("moe.shared_fc1", {.out = fc1_rows(spec, spec.shared_ffn),
                                   .in = spec.width,
                                   .gate_up_rows = spec.style.is_gated()});
    list.linear("moe.shared_fc2", {.out = spec.width,
                                   .in = spec.shared_ffn,
                                   .split = TensorSplit::kColumns,
                                   .std_scale = list.residual_scale()});
  }
  if (spec.shared_gate) {
    list.linear("moe.shared_gate", {.out = 1, .in = spec.width, .split = TensorSplit::kNorm});
  }
}

RouterRule rule_of(const ModelSpec& spec) {
  return {.per_token = spec.experts_per_token,
          .sigmoid = spec.router.sigmoid,
          .normalize = spec.router.normalize,
          .scale = spec.router.scale,
          .groups = spec.router.groups,
          .kept_groups = spec.router.kept_groups};
}

/// Layers begin with different experts, as tokens of a rank may be fewer than experts.
ForcedChoice forced_choice(const ModelSpec& spec, int32_t layer) {
  return spec.router.force_balance ? ForcedChoice{.forced = true, .first = layer} : ForcedChoice{};
}

/// Loads count over all tokens of the microbatch's sequences, so that any number of ranks has the
/// same losses.
ValueId counts_of_all(BlockBuilder& builder, ValueId counts, std::string_view site) {
  const auto sum = [&](std::string_view group, std::string_view ranks) {
    counts = all_reduce(builder.graph(), counts, group, fmt::format("{}.{}", site, ranks));
  };
  if (builder.tensor().splits_rows()) {
    sum(kTensorGroup, "tensor");
  }
  const ContextShard& context = builder.context();
  if (context.inner > 1) {
    sum("context.inner", "inner");
  }
  if (context.outer() > 1) {
    sum("context.outer", "outer");
  }
  return counts;
}

/// The same for each sequence.
ValueId sequence_counts(BlockBuilder& builder, ValueId experts, const SequenceRows& rows) {
  constexpr std::string_view kSite = "moe.sequence_counts";
  const SequenceCountSizes sizes{.sequences = builder.rows() / builder.local_sequence(),
                                 .experts = builder.spec().experts};
  return counts_of_all(builder, count_by_sequence(builder.graph(), experts, sizes, rows, kSite),
                       kSite);
}

/// The sequences of this rank's rows, which tensor ranks may share.
SequenceRows sequence_rows(const BlockBuilder& builder, int64_t rows) {
  const TensorShard& tensor = builder.tensor();
  return {.sequence = builder.local_sequence(),
          .first = tensor.splits_rows() ? tensor.index * rows : 0};
}

/// What losses are made of: the logits, the choice, and its number of rows of each expert.
struct Routing {
  ValueId logits;
  ValueId experts;
  ValueId counts;
};

void add_losses(BlockBuilder& builder, const Routing& routing) {
  const RouterLosses& losses = builder.router_losses();
  const bool sigmoid = builder.spec().router.sigmoid;
  GraphBuilder& graph = builder.graph();
  const auto add = [&](ValueId counts, const RouterLossAttributes& attributes,
                       std::string_view site) {
    router_losses(graph,
                  {.logits = routing.logits, .counts = counts, .loss_scale = builder.loss_scale()},
                  attributes, site);
  };
  if (losses.balance != 0 || losses.z != 0) {
    add(counts_of_all(builder, routing.counts, "moe.counts"),
        {.balance = losses.balance, .z = losses.z, .sigmoid = sigmoid}, "moe.losses");
  }
  if (losses.sequence_balance != 0) {
    const SequenceRows rows = sequence_rows(builder, graph.value(routing.logits).shape[0]);
    add(sequence_counts(builder, routing.experts, rows),
        {.balance = losses.sequence_balance, .sigmoid = sigmoid, .rows = rows},
        kSequenceLossesSite);
  }
}

/// Rows of experts, one behind the other, and their weights, of all tokens whose experts this rank
/// has.
struct Inputs {
  ValueId x;
  ValueId weights;
  ValueId offsets;
};

ExpertGroup expert_group(const BlockBuilder& builder, int64_t tokens) {
  const ExpertShard& experts = builder.experts();
  return {.name = kExpertExchangeGroup,
          .num_ranks = experts.num_ranks(),
          .experts = builder.spec().experts,
          .copies = experts.tensor,
          .max_rows = expert_room(builder.spec(), experts, tokens),
          .drops = experts.drops,
          .block_rows = rows_of_block(builder.spec(), experts, tokens),
          .member = experts.index * experts.tensor + experts.tensor_index};
}

/// The results of the rank's experts.
ValueId computed(BlockBuilder& builder, const Inputs& in) {
  GraphBuilder& graph = builder.graph();
  const ValueId hidden =
      grouped_linear(graph, in.x, builder.scoped_param("moe.fc1.weight"), in.offsets, "moe.fc1");
  const ValueId active = builder.spec().style.is_gated()
                             ? routed_swiglu(graph, hidden, in.weights, in.offsets, "moe.swiglu")
                             : routed_relu2(graph, hidden, in.weights, in.offsets, "moe.relu2");
  return grouped_linear(graph, active, builder.scoped_param("moe.fc2.weight"), in.offsets,
                        "moe.fc2");
}

/// The same of all experts of a group, for the rows that this rank has.
ValueId computed_by_all(BlockBuilder& builder, const Inputs& own, const ExpertGroup& group) {
  GraphBuilder& graph = builder.graph();
  const ValueId offsets =
      all_gather(graph, own.offsets, group.name, group.num_ranks, "moe.offsets_of_all");
  const bool by_blocks = group.block_rows > 0;
  const DispatchedRows rows = (by_blocks ? dispatch_by_blocks : dispatch_rows)(
      graph, {.x = own.x, .weights = own.weights, .offsets_of_all = offsets}, group,
      builder.room_tally("moe.room", RoomTally::kSize), "moe.dispatch");
  const ValueId outputs =
      computed(builder, {.x = rows.x, .weights = rows.weights, .offsets = rows.offsets});
  const int64_t num_rows = graph.value(own.x).shape[0];
  return (by_blocks ? combine_by_blocks : combine_rows)(graph, outputs, offsets, num_rows, group,
                                                        "moe.combine");
}

/// Those of its host, with which a rank exchanges rows directly.
ExpertGroup host_group(const BlockBuilder& builder, const HostRoom& room, int64_t tokens) {
  const ExpertShard& experts = builder.experts();
  ExpertGroup group = expert_group(builder, tokens);
  group.name = kExpertHostGroup;
  group.num_ranks /= experts.hosts;
  group.experts /= experts.hosts;
  group.member %= group.num_ranks;
  group.equal_rows = room.expected_rows;
  return group;
}

/// Tokens that a rank got from all hosts, of which its host has experts.
struct CameTokens {
  ValueId x;        ///< [S,C]
  ValueId weights;  ///< f32 [S,K]
  ValueId choices;  ///< i32 [S,K]
};

/// For each of them, the sum of its experts on this host, whose ranks exchange rows if there are
/// several.
ValueId computed_by_host(BlockBuilder& builder, const CameTokens& came, const HostRoom& room,
                         int64_t tokens) {
  GraphBuilder& graph = builder.graph();
  const ExpertGroup group = host_group(builder, room, tokens);
  const ExpertRows rows = sort_rows_into(
      graph, came.choices, group.experts,
      {.rows = room.rows, .expected = room.expected_rows, .drops = group.drops}, "moe.host_sort");
  const ValueId x = gather_rows(graph, came.x, rows, "moe.gather");
  const ValueId weights = sort_weights(graph, came.weights, rows, "moe.weights");
  const Inputs own{.x = x, .weights = weights, .offsets = rows.offsets};
  const ValueId results =
      group.num_ranks == 1 ? computed(builder, own) : computed_by_all(builder, own, group);
  return sum_rows(graph, results, rows, "moe.host_sum");
}

/// The results of the experts of each token: one copy of it goes to each host that has some of
/// them, to the rank with this rank's place there, and one sum comes back.
ValueId computed_by_hosts(BlockBuilder& builder, ValueId x, const RouteResult& choice) {
  GraphBuilder& graph = builder.graph();
  const ExpertShard& experts = builder.experts();
  const int64_t tokens = graph.value(x).shape[0];
  const HostRoom room = host_room(builder.spec(), experts, tokens);
  const auto of_rail = [&](ValueId value, std::string_view site) {
    return all_gather(graph, value, kExpertRailGroup, experts.hosts, site);
  };
  const HostSlots slots =
      host_slots(graph, of_rail(choice.experts, "moe.choices_of_rail"),
                 {.member = experts.host(),
                  .hosts = experts.hosts,
                  .experts = builder.spec().experts,
                  .block_rows = room.block_rows,
                  .rows = room.rows,
                  .drops = experts.drops},
                 builder.room_tally("moe.slots_room", RoomTally::kSize), "moe.slots");
  const PartialMaps maps{room.expected_slots};
  const ExpertRows sent{.row_of = slots.slot_of, .pair_of = slots.token_of, .partial = maps};
  const ExpertRows came{
      .row_of = slots.came_slot_of, .pair_of = slots.came_token_of, .partial = maps};
  const auto exchanged = [&](ValueId blocks, std::string_view site) {
    return all_to_all(graph, blocks, kExpertRailGroup, experts.hosts, site);
  };
  const ValueId weights = of_rail(choice.weights, "moe.weights_of_rail");
  const CameTokens tokens_of_all{
      .x = exchanged(gather_rows(graph, x, sent, "moe.sent"), "moe.came"),
      .weights = gather_rows(graph, weights, came, "moe.came_weights"),
      .choices = slots.choices};
  const ValueId sums = computed_by_host(builder, tokens_of_all, room, tokens);
  return sum_rows(graph, exchanged(sums, "moe.returned"), sent, "moe.sum");
}

/// The rows of this rank's tokens, in the order of their experts: all, or those that experts take.
ExpertRows sorted_rows(BlockBuilder& builder, const RouteResult& choice) {
  const ModelSpec& spec = builder.spec();
  GraphBuilder& graph = builder.graph();
  const ExpertRows rows = sort_rows(graph, choice.experts, spec.experts,
                                    builder.expert_tally("moe.rows", spec.experts), "moe.sort");
  if (spec.router.expert_capacity == 0) {
    return rows;
  }
  const int64_t tokens = graph.value(choice.weights).shape[0];
  return drop_rows(graph, choice.weights, rows,
                   {.capacity = rows_of_expert(spec, tokens),
                    .by_position = spec.router.drops_by_position,
                    .tally = builder.expert_tally("moe.capacity", RoomTally::kSize)},
                   kDropSite);
}

ValueId router_logits(BlockBuilder& builder, ValueId x) {
  RouterLinearOperands operands{.x = x, .weight = builder.scoped_param("moe.router.weight")};
  if (builder.spec().router.logit_bias) {
    operands.logit_bias = builder.scoped_param("moe.router.logit_bias");
  }
  return router_linear(builder.graph(), operands, "moe.router");
}

/// The results of each token's experts, summed.
ValueId routed(BlockBuilder& builder, ValueId x) {
  const ModelSpec& spec = builder.spec();
  GraphBuilder& graph = builder.graph();
  const ValueId logits = router_logits(builder, x);
  const RouteResult choice = route(graph, logits, builder.bias("moe.router"),
                                   {.rule = rule_of(spec),
                                    .forced = forced_choice(spec, graph.layer()),
                                    .use = builder.routing()},
                                   "moe.route");
  const ExpertRows rows = sorted_rows(builder, choice);
  add_losses(builder, {.logits = logits, .experts = choice.experts, .counts = rows.counts});
  if (builder.experts().over_hosts()) {
    return computed_by_hosts(builder, x, choice);
  }
  const Inputs inputs{.x = gather_rows(graph, x, rows, "moe.gather"),
                      .weights = sort_weights(graph, choice.weights, rows, "moe.weights"),
                      .offsets = rows.offsets};
  const int64_t tokens = graph.value(x).shape[0];
  const ValueId outputs = builder.experts().is_split()
                              ? computed_by_all(builder, inputs, expert_group(builder, tokens))
                              : computed(builder, inputs);
  return sum_rows(graph, outputs, rows, "moe.sum");
}

ValueId shared(BlockBuilder& builder, ValueId x) {
  const ValueId hidden = builder.column_linear(x, "moe.shared_fc1");
  const ValueId active = builder.spec().style.is_gated()
                             ? swiglu(builder.graph(), hidden, "moe.shared_swiglu")
                             : relu2(builder.graph(), hidden, "moe.shared_relu2");
  return builder.row_linear(active, "moe.shared_fc2");
}

/// y and the result of the shared expert, of which a gate lets each token take a part.
ValueId with_shared(BlockBuilder& builder, ValueId x, ValueId y) {
  GraphBuilder& graph = builder.graph();
  const ValueId result = shared(builder, x);
  if (!builder.spec().shared_gate) {
    return add(graph, y, result, "moe.output");
  }
  const ValueId gate = router_linear(
      graph, {.x = x, .weight = builder.scoped_param("moe.shared_gate.weight")}, "moe.shared_gate");
  return add_gated(graph, y, {.x = result, .z = gate}, "moe.output");
}

ValueId forward(BlockBuilder& builder, ValueId x) {
  check(!builder.tensor().is_split() || builder.tensor().sequence_parallel,
        "tensor ranks share a router's tokens without sequence parallelism");
  const ValueId y = routed(builder, x);
  return builder.spec().shared_ffn == 0 ? y : with_shared(builder, x, y);
}

BlockCost cost(const ModelSpec& spec, int64_t /*sequence*/) {
  const auto width = static_cast<double>(spec.width);
  const auto per_token = static_cast<double>(spec.experts_per_token);
  const auto ffn = static_cast<double>(spec.expert_ffn);
  const auto fc1 = static_cast<double>(fc1_rows(spec, spec.expert_ffn));
  const auto shared_ffn = static_cast<double>(spec.shared_ffn);
  const auto shared_fc1 = static_cast<double>(fc1_rows(spec, spec.shared_ffn));
  const auto experts = static_cast<double>(spec.experts);
  const double gate = spec.shared_gate ? 1.0 : 0.0;
  const double of_routed = per_token * (fc1 + ffn);
  const double of_shared = shared_fc1 + shared_ffn;
  return {.weights = width * (experts + of_routed + of_shared + gate),
          .kept_elems =
              (2 + gate) * width + per_token * width + of_routed + of_shared + 2 * (experts + gate),
          .widest = std::max(per_token * std::max(width, fc1), shared_fc1)};
}

/// One tensor for each matrix of an expert.
void add_separate_experts(HfTensorList& list, const ModelSpec& spec, bool is_mixtral,
                          std::string_view block) {
  const int64_t ffn = spec.expert_ffn;
  for (int64_t e = 0; e < spec.experts; ++e) {
    const std::string expert = fmt::format("{}.experts.{}", block, e);
    list.add(fmt::format("{}.{}.weight", expert, is_mixtral ? "w1" : "gate_proj"),
             {ffn, spec.width}, "moe.fc1.weight", 2 * ffn * e, 2);
    list.add(fmt::format("{}.{}.weight", expert, is_mixtral ? "w3" : "up_proj"), {ffn, spec.width},
             "moe.fc1.weight", 2 * ffn * e + 1, 2);
    list.add(fmt::format("{}.{}.weight", expert, is_mixtral ? "w2" : "down_proj"),
             {spec.width, ffn}, "moe.fc2.weight", spec.width * e);
  }
}

/// One tensor for all experts; the gate's rows of each stand in front of the other ones.
void add_fused_experts(HfTensorList& list, const ModelSpec& spec, std::string_view block) {
  const int64_t ffn = spec.expert_ffn;
  for (int64_t half = 0; half < 2 * spec.experts; ++half) {
    list.add(fmt::format("{}.experts.gate_up_proj", block), {ffn, spec.width}, "moe.fc1.weight",
             2 * ffn * (half / 2) + half % 2, 2);
    list.set_whole({spec.experts, 2 * ffn, spec.width}, ffn * half);
  }
  list.add(fmt::format("{}.experts.down_proj", block), {spec.experts * spec.width, ffn},
           "moe.fc2.weight");
  list.set_whole({spec.experts, spec.width, ffn}, 0);
}

/// Nemotron-H's: experts without a gate.
void add_backbone_tensors(HfTensorList& list, const ModelSpec& spec) {
  const int64_t ffn = spec.expert_ffn;
  list.add_norm("norm", spec, "moe_norm");
  list.add("mixer.gate.weight", {spec.experts, spec.width}, "moe.router.weight");
  list.add("mixer.gate.e_score_correction_bias", {spec.experts}, "moe.router.bias");
  if (list.experts() == HfExperts::kFused) {
    list.add("mixer.experts.up_proj", {spec.experts * ffn, spec.width}, "moe.fc1.weight");
    list.set_whole({spec.experts, ffn, spec.width}, 0);
    list.add("mixer.experts.down_proj", {spec.experts * spec.width, ffn}, "moe.fc2.weight");
    list.set_whole({spec.experts, spec.width, ffn}, 0);
  } else {
    for (int64_t e = 0; e < spec.experts; ++e) {
      list.add(fmt::format("mixer.experts.{}.up_proj.weight", e), {ffn, spec.width},
               "moe.fc1.weight", ffn * e);
      list.add(fmt::format("mixer.experts.{}.down_proj.weight", e), {spec.width, ffn},
               "moe.fc2.weight", spec.width * e);
    }
  }
  list.add("mixer.shared_experts.up_proj.weight", {spec.shared_ffn, spec.width},
           "moe.shared_fc1.weight");
  list.add("mixer.shared_experts.down_proj.weight", {spec.width, spec.shared_ffn},
           "moe.shared_fc2.weight");
}

void add_hf_tensors(HfTensorList& list, const ModelSpec& spec, HfNaming naming) {
  if (naming == HfNaming::kBackbone) {
    return add_backbone_tensors(list, spec);
  }
  if (naming == HfNaming::kGpt2) {
    throw_config_error("model.pattern: such files have no block \"moe\"");
  }
  const bool is_fused = list.experts() == HfExperts::kFused;
  const bool is_mixtral = naming == HfNaming::kMixtral && !is_fused;
  const std::string_view block = is_mixtral ? "block_sparse_moe" : "mlp";
  list.add_norm("post_attention_layernorm", spec, "moe_norm");
  list.add(fmt::format("{}.gate.weight", block), {spec.experts, spec.width}, "moe.router.weight");
  if (spec.router.bias) {
    list.add("mlp.gate.e_score_correction_bias", {spec.experts}, "moe.router.bias");
  }
  if (is_fused) {
    add_fused_experts(list, spec, block);
  } else {
    add_separate_experts(list, spec, is_mixtral, block);
  }
  if (spec.shared_ffn > 0) {
    const std::string_view shared =
        naming == HfNaming::kDeepseek ? "mlp.shared_experts" : "mlp.shared_expert";
    list.add(fmt::format("{}.gate_proj.weight", shared), {spec.shared_ffn, spec.width},
             "moe.shared_fc1.weight", 0, 2);
    list.add(fmt::format("{}.up_proj.weight", shared), {spec.shared_ffn, spec.width},
             "moe.shared_fc1.weight", 1, 2);
    list.add(fmt::format("{}.down_proj.weight", shared), {spec.width, spec.shared_ffn},
             "moe.shared_fc2.weight");
  }
  if (spec.shared_gate) {
    list.add("mlp.shared_expert_gate.weight", {1, spec.width}, "moe.shared_gate.weight");
  }
}

}  // namespace

/// A mixture of experts: a router sends each token to a few of many MLPs, and sums their results
/// with its weights. Every token is computed, unless experts have a capacity. The shared expert, if
/// there is one, works on all tokens. Tensor ranks route their own tokens. Ranks hold all experts,
/// or exchange rows with those that hold the others.
extern const BlockDefinition kMoeBlock{.name = "moe",
                                       .role = BlockRole::kFeedForward,
                                       .needed_sizes = kNeededSizes,
                                       .check_sizes = check_sizes,
                                       .tensor_fault = tensor_fault,
                                       .add_parameters = add_parameters,
                                       .forward = forward,
                                       .cost = cost,
                                       .add_hf_tensors = add_hf_tensors};

}  // namespace braid
