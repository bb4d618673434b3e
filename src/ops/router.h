#pragma once

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// The router of a mixture of experts: which experts a token goes to, and with which weights. T
/// tokens, E experts, K experts per token. Everything is in the accumulator type (f32; f64 for f64
/// data), whatever the type of activations.
///
/// router_linear: x [T,C], w [E,C], optionally logit_bias f32 [E] -> logits f32 [T,E]; logits = x
/// w^T + logit_bias, summed in f32 and not rounded. router_linear_dgrad: d_logits f32 [T,E], w
/// [E,C]
/// -> dx [T,C]. router_linear_wgrad: x [T,C], d_logits f32 [T,E] -> dw f32 [E,C], with a bias also
/// d_logit_bias f32 [E], the column sums of d_logits in an order that depends on the shape alone.
/// With `accumulate`, dx, dw and d_logit_bias are added to.
struct RouterGradAttributes {
  bool accumulate = false;
  void fields(auto&& visit) { visit("accumulate", accumulate); }
};

/// Unlike the bias of `route`, this one is part of the logits and is trained.
struct LogitBias {
  bool has_logit_bias = false;
  void fields(auto&& visit) { visit("has_logit_bias", has_logit_bias); }
  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

struct RouterLinearAttributes {
  LogitBias bias = {};
  void fields(auto&& visit) { visit.optional(bias); }
};

struct RouterWgradAttributes {
  bool accumulate = false;
  LogitBias bias = {};
  void fields(auto&& visit) {
    visit("accumulate", accumulate);
    visit.optional(bias);
  }
};

/// How a router chooses.
struct RouterRule {
  int64_t per_token = 1;  ///< K
  bool sigmoid = false;   ///< scores are sigmoid(logit); otherwise softmax over the experts
  bool normalize = true;  ///< weights of a token sum to `scale`; otherwise weight = scale * score
  double scale = 1.0;     ///< routed_scaling_factor
  /// Experts are in `groups` runs of equal size, of which a token may use `kept_groups`. The score
  /// of a group is its largest score (softmax), or the sum of its two largest (sigmoid).
  int64_t groups = 1;
  int64_t kept_groups = 1;
  void fields(auto&& visit) {
    visit("per_token", per_token);
    visit("sigmoid", sigmoid);
    visit("normalize", normalize);
    visit("scale", scale);
    visit("groups", groups);
    visit("kept_groups", kept_groups);
  }
};

/// route: logits f32 [T,E], optionally bias f32 [E] -> weights f32 [T,K], experts i32 [T,K].
///
/// A token chooses the K experts with the largest score + bias, in descending order; of equal ones
/// the one with the lower number. The bias takes part in the choice, also of groups, and not in the
/// weights. Without a bias experts are compared by their logits, which have the order of the scores
/// but are not rounded again. NaN counts as the largest number, so that every token has K experts
/// and a NaN shows in its weights; so does +infinity with softmax. Sources: Fedus et al., Switch
/// Transformers, 2021; DeepSeek-AI, DeepSeek-V3, 2024.
/// With ForcedChoice::forced, slot j of token t has expert (t K + j + first) mod E, whatever the
/// logits and groups are: equal loads, for benchmarks. Weights are those of these experts.
struct ForcedChoice {
  bool forced = false;
  int64_t first = 0;
  void fields(auto&& visit) {
    visit("forced", forced);
    visit("first", first);
  }
  friend bool operator==(const ForcedChoice&, const ForcedChoice&) = default;
};

/// With `given`, another operand behind logits and bias, given i32 [T,K], is the choice, whatever
/// the logits and groups are: experts = given. Weights are those of these experts. The experts of a
/// token are different ones.
struct GivenChoice {
  bool given = false;
  void fields(auto&& visit) { visit("given", given); }
  friend bool operator==(const GivenChoice&, const GivenChoice&) = default;
};

struct RouteAttributes {
  RouterRule rule;
  bool has_bias = false;
  ForcedChoice choice = {};
  GivenChoice source = {};
  void fields(auto&& visit) {
    rule.fields(visit);
    visit("has_bias", has_bias);
    visit.optional(choice);
    visit.optional(source);
  }
  /// The index of the operand `weights`; `experts` follows.
  size_t weights_operand() const { return 1 + (has_bias ? 1u : 0u) + (source.given ? 1u : 0u); }
};

/// route_backward: logits f32 [T,E], weights f32 [T,K], experts i32 [T,K], d_weights f32 [T,K] ->
/// d_logits f32 [T,E]. The choice has no gradient. Attributes: RouterRule. Weights and experts are
/// those of route for these logits.

/// count_choices: experts i32 [T,K] -> d_bias f32 [E]; d_bias_e = (E c_e - T K) / gcd(E, K), c_e
/// the tokens that chose expert e. This is what the bias of `route` has in place of a gradient: its
/// sign says whether an expert had more tokens than the mean (optimizer.h, balance_update). It is
/// an integer, so sums over microbatches and ranks are exact up to 2^24. With `accumulate` it is
/// added to. Source: Wang et al., Auxiliary-loss-free load balancing strategy for
/// mixture-of-experts, 2024.

/// The sequence that each row of a rank is of: row n is of sequence (first + n) / sequence.
struct SequenceRows {
  int64_t sequence = 0;  ///< rows of one sequence; 0: all rows are of sequence 0
  int64_t first = 0;     ///< rows of ranks in front, which share the sequences
  void fields(auto&& visit) {
    visit("sequence", sequence);
    visit("first", first);
  }
  int64_t of(int64_t row) const { return sequence == 0 ? 0 : (first + row) / sequence; }
  friend bool operator==(const SequenceRows&, const SequenceRows&) = default;
};

/// count_by_sequence: experts i32 [T,K] -> counts f32 [S,E]: how many rows of each of S sequences
/// chose each expert. Sequences without a row have 0. Attributes: SequenceRows, with sequence > 0.

/// router_losses: logits f32 [T,E], counts f32 [E], loss_scale f32 [1] -> losses f32 [2]:
///   balance  loss_scale * balance * E * sum over e of f_e * (sum over tokens of p_te),
///            f_e = counts[e] / (sum of counts), p = softmax of the logits
///            (sigmoid: sigmoid of the logits, divided by their sum over the experts + 1e-20)
///   z        loss_scale * z * sum over tokens of lse_t^2, lse the log-sum-exp of the logits
/// loss_scale is that of cross_entropy (1 / labels of the step), so both are means over the tokens
/// of the step; balance is the coefficient if experts have equal loads. `counts` has no gradient;
/// it may be a sum over ranks; if all are 0, so is f. With `rows.sequence`, counts are f32 [S,E],
/// and f is that of the token's sequence, so that balance is the mean over sequences of a loss
/// inside each of them: DeepSeek-AI, DeepSeek-V3, 2024, equations 17 to 20 (with a sigmoid, whose
/// scores are divided by their sum; DeepSeek-V2's seq_aux with a softmax). router_losses_backward:
/// the same operands -> d_logits f32 [T,E]. Without `adds` it is 0 and the losses are 0: if ranks
/// compute the same tokens, one of them adds. Sources: Lepikhin et al., GShard, 2020; Zoph et al.,
/// ST-MoE, 2022; as in Megatron-LM (aux_loss, z_loss).
struct RouterLossAttributes {
  double balance = 0.0;
  double z = 0.0;
  bool sigmoid = false;
  bool adds = true;
  SequenceRows rows = {};
  void fields(auto&& visit) {
    visit("balance", balance);
    visit("z", z);
    visit("sigmoid", sigmoid);
    visit("adds", adds);
    visit.optional(rows);
  }
};

/// What the host has to do with the experts that routers choose.
enum class RoutingUse : uint8_t {
  kScores,    ///< nothing: they choose by their scores
  kGiven,     ///< it gives them to `route`
  kRecorded,  ///< it reads them
};

/// The buffer of the choices of all routers of a rank's training step that the host gives or reads,
/// i32 [routers, M, T K], and the end of the names of their values.
inline constexpr std::string_view kRoutingBuffer = "routing";
inline constexpr std::string_view kRoutingSuffix = ".routing";

/// The buffer of the losses of all routers of a rank's training step, f32 [outputs, M, 2].
inline constexpr std::string_view kRouterLossesBuffer = "router_losses";

extern const OpDefinition kRouterLinearOp;
extern const OpDefinition kRouterLinearDgradOp;
extern const OpDefinition kRouterLinearWgradOp;
extern const OpDefinition kRouteOp;
extern const OpDefinition kRouteBackwardOp;
extern const OpDefinition kCountChoicesOp;
extern const OpDefinition kCountBySequenceOp;
extern const OpDefinition kRouterLossesOp;
extern const OpDefinition kRouterLossesBackwardOp;

struct RouterLinearOperands {
  ValueId x;
  ValueId weight;
  std::optional<ValueId> logit_bias = {};  ///< widened first if it is of activations' type
};
ValueId router_linear(GraphBuilder& builder, const RouterLinearOperands& operands,
                      std::string_view site);

struct RouteResult {
  ValueId weights;  ///< f32 [T,K]
  ValueId experts;  ///< i32 [T,K]
};
/// A bias of activations' type is widened first. If it is a parameter, its main grad counts
/// choices. `forced` has no effect on a given choice. Choices that the host gives or reads are the
/// value "<scope>.<site>.routing".
struct RouteOptions {
  RouterRule rule;
  ForcedChoice forced = {};
  RoutingUse use = RoutingUse::kScores;
};
RouteResult route(GraphBuilder& builder, ValueId logits, std::optional<ValueId> bias,
                  const RouteOptions& options, std::string_view site);

/// Counts f32 [sequences, num_experts].
struct SequenceCountSizes {
  int64_t sequences = 0;
  int64_t experts = 0;
};
ValueId count_by_sequence(GraphBuilder& builder, ValueId experts, const SequenceCountSizes& sizes,
                          const SequenceRows& rows, std::string_view site);

struct RouterLossOperands {
  ValueId logits;
  ValueId counts;
  ValueId loss_scale;
};
/// The losses are an output "<scope>.<site>" that the host reads. Their gradient is 1 by
/// definition, like that of cross_entropy.
ValueId router_losses(GraphBuilder& builder, const RouterLossOperands& operands,
                      const RouterLossAttributes& attributes, std::string_view site);

}  // namespace braid
