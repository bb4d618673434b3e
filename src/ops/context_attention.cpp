#include "ops/context_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "ops/attention_step.h"
#include "ops/attributes.h"
#include "ops/autodiff.h"
#include "ops/collectives.h"
#include "ops/context_layout.h"
#include "ops/operand_checker.h"

namespace braid {
namespace {

void check_finish(const OpSpec& spec) {
  const auto attributes = attributes_of<AttentionFinishAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& sum = operands.next_floating("sum", Access::kRead, 2);
  const OperandSpec& out = operands.next_floating("out", Access::kWrite, 2);
  operands.require(attributes.group >= 0, "group must be an index into the program's groups");
  operands.require(attributes.index >= 0 && attributes.index < attributes.ranks,
                   "index must be that of one of the ranks");
  operands.require(sum.shape == out.shape && sum.dtype == accumulator_dtype(out.dtype),
                   "sum must be an accumulator of out");
  operands.done();
}

// ---- the queries and keys of each step

AttentionStepAttributes step_of(const AttentionAttributes& core, int64_t kv_sequence) {
  return {.heads = core.heads,
          .kv_heads = core.kv_heads,
          .head_size = core.head_size,
          .sequence = core.sequence,
          .kv_sequence = kv_sequence,
          .scale = core.scale,
          .queries = core.sequence,
          .keys = kv_sequence,
          .documents = core.documents};
}

/// Where the queries and keys of outer rank `index` lie.
TokenPositions rank_positions(const AttentionAttributes& core, int64_t ranks, int64_t index) {
  const int64_t half = core.sequence / 2;
  return {
      .first_begin = index * half, .second_begin = (2 * ranks - 1 - index) * half, .split = half};
}

/// The window of a step on rank `index`.
StepWindow window_on(const AttentionAttributes& core, int64_t ranks, int64_t index) {
  return {.limit = core.window, .query_positions = rank_positions(core, ranks, index)};
}

/// Whether the first query sees a key. If it does not, no other does.
bool sees_a_key(const AttentionStepAttributes& step) {
  const SeenKeys seen = seen_keys(step, 0);
  return seen.first < seen.end;
}

/// Cuts the ranges of queries and keys to those that see and are seen. If none does, one query
/// remains, which sees nothing, so that all ranks have the same steps.
void cut_to_window(AttentionStepAttributes& step) {
  if (!sees_a_key(step)) {
    step.queries = 1;
    step.keys = 1;
    return;
  }
  const int64_t unseen = seen_keys(step, 0).first;
  step.key_begin += unseen;
  step.keys -= unseen;
  if (!step.causal) {  // otherwise every query sees itself
    const int64_t last_key = step.key_positions.of(step.key_begin + step.keys - 1);
    const int64_t seeing =
        step.window.query_positions.before(last_key + step.window.limit.window, step.sequence);
    step.queries = std::min(step.queries, seeing - step.query_begin);
  }
}

/// Step `number` of the ring on rank `index`: the rank has the kv of the rank `number` places
/// before it. The first chunk of an earlier rank lies before both own chunks and its last one after
/// both; both chunks of a later rank lie between the own two.
AttentionStepAttributes ring_step(const AttentionAttributes& core, int64_t ranks, int64_t index,
                                  int64_t number) {
  AttentionStepAttributes step = step_of(core, core.sequence);
  if (core.documents.documents || core.window.is_on()) {
    step.key_positions = rank_positions(core, ranks, (index - number + ranks) % ranks);
  }
  const int64_t half = core.sequence / 2;
  if (number == 0) {
    step.causal = true;
  } else if (number <= index) {
    step.keys = half;
  } else {
    step.query_begin = half;
    step.queries = half;
  }
  step.accumulate = number > 0;
  if (core.window.is_on()) {
    step.window = window_on(core, ranks, index);
    cut_to_window(step);
  }
  return step;
}

/// The steps of the ring in which some rank sees a key, ascending; 0 is one.
std::vector<int64_t> ring_numbers(const AttentionAttributes& core, int64_t ranks) {
  std::vector<int64_t> numbers;
  for (int64_t number = 0; number < ranks; ++number) {
    bool is_seen = !core.window.is_on();
    for (int64_t index = 0; index < ranks && !is_seen; ++index) {
      is_seen = sees_a_key(ring_step(core, ranks, index, number));
    }
    if (is_seen) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

/// The two chunks of rank `index` with all keys up to their ends.
std::vector<AttentionStepAttributes> gathered_steps(const AttentionAttributes& core, int64_t ranks,
                                                    int64_t index) {
  std::vector<AttentionStepAttributes> steps(2, step_of(core, core.sequence * ranks));
  const int64_t half = core.sequence / 2;
  for (AttentionStepAttributes& step : steps) {
    step.queries = half;
    step.causal = true;
  }
  steps[0].keys = (index + 1) * half;
  steps[1].keys = (2 * ranks - index) * half;
  steps[1].query_begin = half;
  steps[1].accumulate = true;
  if (core.window.is_on()) {
    for (AttentionStepAttributes& step : steps) {
      step.window = window_on(core, ranks, index);
      cut_to_window(step);
    }
  }
  return steps;
}

// ---- forward

/// The nodes of one attention over the outer group.
class OuterAttention {
 public:
  OuterAttention(GraphBuilder& builder, ValueId qkv, const ContextAttention& context,
                 std::string_view site)
      : builder_(builder), qkv_(qkv), context_(context), core_(context.core), site_(site) {
    const Value input = builder.value(qkv);
    const DType wide = accumulator_dtype(input.dtype);
    const int64_t rows = input.shape[0];
    sum_ = builder.add_activation(name("sum"), wide, {rows, core_.heads * core_.head_size});
    lse_ = builder.add_activation(name("lse"), wide,
                                  {rows / core_.sequence, core_.heads, core_.sequence});
  }

  ValueId build() {
    if (context_.method == ContextMethod::kRing) {
      add_ring();
    } else {
      add_gathered();
    }
    const Value input = builder_.value(qkv_);
    const ValueId out =
        builder_.add_activation(site_, input.dtype, Shape(builder_.value(sum_).shape));
    const AttentionFinishAttributes attributes{
        .group = builder_.group(context_.outer_group),
        .ranks = context_.outer,
        .index = context_.outer_index,
        .gathers = context_.method == ContextMethod::kAllGather};
    builder_.add_node("attention_finish", to_attributes(attributes),
                      std::array{Operand{sum_}, Operand{out, Access::kWrite}}, site_);
    return out;
  }

 private:
  std::string name(std::string_view part) const { return fmt::format("{}.{}", site_, part); }

  ValueId pack() {
    const Value input = builder_.value(qkv_);
    const ValueId kv = builder_.add_activation(
        name("kv"), input.dtype, {input.shape[0], 2 * core_.kv_heads * core_.head_size});
    builder_.add_node("pack_kv", {}, std::array{Operand{qkv_}, Operand{kv, Access::kWrite}},
                      name("kv"));
    return kv;
  }

  void add_step(ValueId kv, const AttentionStepAttributes& step) {
    const Access access = accumulate_access(step.accumulate);
    std::vector<Operand> operands{{qkv_}, {kv}};
    if (context_.starts) {
      operands.push_back({*context_.starts});
    }
    operands.push_back({sum_, access});
    operands.push_back({lse_, access});
    builder_.add_node("attention_step", to_attributes(step), operands, site_);
  }

  void add_ring() {
    ValueId kv = pack();
    int64_t at = 0;  // places that kv has moved on
    for (const int64_t number : ring_numbers(core_, context_.outer)) {
      if (number > 0) {
        kv = ring_shift(builder_, kv, context_.outer_group, number - at,
                        fmt::format("{}.kv.{}", site_, number));
        at = number;
      }
      add_step(kv, ring_step(core_, context_.outer, context_.outer_index, number));
    }
  }

  void add_gathered() {
    const ValueId parts =
        all_gather(builder_, pack(), context_.outer_group, context_.outer, name("kv.parts"));
    const ValueId kv = zigzag_order(
        builder_, parts, {.ranks = context_.outer, .sequence = core_.sequence}, name("kv.all"));
    for (const auto& step : gathered_steps(core_, context_.outer, context_.outer_index)) {
      add_step(kv, step);
    }
  }

  GraphBuilder& builder_;
  ValueId qkv_;
  const ContextAttention& context_;
  const AttentionAttributes& core_;
  std::string_view site_;
  ValueId sum_;
  ValueId lse_;
};

// ---- backward

/// The nodes of the backward of one OuterAttention; repeats the communication of the forward.
class OuterBackward {
 public:
  OuterBackward(BackwardBuilder& builder, const Node& finish, ValueId d_out)
      : builder_(builder),
        finish_(finish),
        attributes_(attributes_of<AttentionFinishAttributes>(finish.spec)),
        out_(finish.operands[1]),
        d_out_(d_out) {
    const Node& first_step = builder.producer_of(finish.operands[0]);
    qkv_ = first_step.operands[0];
    own_kv_ = builder.value(first_step.operands[1]);
    lse_ = first_step.operands.back();
    const auto step = attributes_of<AttentionStepAttributes>(first_step.spec);
    core_ = {.heads = step.heads,
             .kv_heads = step.kv_heads,
             .head_size = step.head_size,
             .sequence = step.sequence,
             .scale = step.scale,
             .documents = step.documents,
             .window = step.window.limit};
    if (step.documents.documents) {
      starts_ = first_step.operands[2];
    }
    own_kv_.shape[0] = builder.value(qkv_).shape[0];
    own_kv_.name = fmt::format("{}.kv", builder.value(out_).name);
    wide_ = accumulator_dtype(own_kv_.dtype);
    d_q_ = new_value("d_q", wide_, builder.value(out_).shape);
  }

  void build() {
    const ValueId d_kv = attributes_.gathers ? gathered() : ring();
    const ValueId d_qkv = builder_.new_grad(qkv_);
    add("assemble_qkv", {}, std::array{Operand{d_q_}, Operand{d_kv}, to(d_qkv)});
    builder_.add_grad(finish_, qkv_, d_qkv);
  }

 private:
  static Operand to(ValueId value) { return {value, Access::kWrite}; }

  ValueId new_value(std::string_view part, DType dtype, const Shape& shape) {
    return builder_.new_activation({.name = fmt::format("{}.{}", builder_.value(out_).name, part),
                                    .dtype = dtype,
                                    .shape = shape});
  }

  void add(std::string op, std::vector<Attribute> attributes, std::span<const Operand> operands,
           Phase phase = Phase::kDgrad) {
    builder_.add_node(finish_, std::move(op), std::move(attributes), operands, phase);
  }

  ValueId pack() {
    const ValueId kv = new_value("kv_again", own_kv_.dtype, own_kv_.shape);
    add("pack_kv", {}, std::array{Operand{qkv_}, to(kv)});
    return kv;
  }

  ValueId shift(ValueId x, int64_t places, const std::string& part) {
    const Value like = builder_.value(x);
    const ValueId y = new_value(part, like.dtype, like.shape);
    add("ring_shift",
        to_attributes(RingShiftAttributes{.group = attributes_.group, .shift = places}),
        std::array{Operand{x}, to(y)}, Phase::kComm);
    return y;
  }

  void add_step(ValueId kv, ValueId d_kv, const AttentionStepAttributes& step, bool accumulate_q,
                bool accumulate_kv) {
    const AttentionStepBackwardAttributes attributes{
        .step = step, .accumulate_q = accumulate_q, .accumulate_kv = accumulate_kv};
    std::vector<Operand> operands{{qkv_}, {kv}, {out_}, {lse_}, {d_out_}};
    if (starts_) {
      operands.push_back({*starts_});
    }
    operands.push_back({d_q_, accumulate_access(accumulate_q)});
    operands.push_back({d_kv, accumulate_access(accumulate_kv)});
    add("attention_step_backward", to_attributes(attributes), operands);
  }

  /// d_kv travels one step behind its kv: when it arrives, a rank adds its own part, computed
  /// meanwhile. A rank's own kv come last, so that the last shift, which returns their d_kv, has a
  /// concurrent step like all others.
  ValueId ring() {
    const ValueId own = pack();
    ValueId kv = own;
    std::optional<ValueId> travelling;
    std::vector<int64_t> numbers = ring_numbers(core_, attributes_.ranks);
    numbers.erase(numbers.begin());
    numbers.push_back(attributes_.ranks);
    int64_t at = 0;  // places that kv has moved on
    for (const int64_t number : numbers) {
      const bool is_own = number == attributes_.ranks;
      kv = is_own ? own : shift(kv, number - at, fmt::format("kv_again.{}", number));
      std::optional<ValueId> arrived;
      if (travelling) {
        arrived = shift(*travelling, number - at, fmt::format("d_kv.{}.arrived", number));
      }
      const ValueId part = new_value(fmt::format("d_kv.{}", number), wide_, own_kv_.shape);
      add_step(kv, part,
               ring_step(core_, attributes_.ranks, attributes_.index, is_own ? 0 : number),
               /*accumulate_q=*/at > 0, /*accumulate_kv=*/false);
      at = number;
      if (arrived) {
        add("accumulate", {}, std::array{Operand{*arrived}, Operand{part, Access::kReadWrite}});
      }
      travelling = part;
    }
    return *travelling;
  }

  ValueId in_order(ValueId x, std::string_view part, bool inverse) {
    const Value like = builder_.value(x);
    const ValueId y = new_value(part, like.dtype, like.shape);
    const ZigzagOrderAttributes order{
        .ranks = attributes_.ranks, .sequence = core_.sequence, .inverse = inverse};
    add("zigzag_order", to_attributes(order), std::array{Operand{x}, to(y)});
    return y;
  }

  ValueId gathered() {
    const std::vector<Attribute> in_group =
        to_attributes(CollectiveAttributes{.group = attributes_.group});
    Shape all = own_kv_.shape;
    all[0] *= attributes_.ranks;
    const ValueId own = pack();
    const ValueId parts = new_value("kv_again.parts", own_kv_.dtype, all);
    add("all_gather", in_group, std::array{Operand{own}, to(parts)}, Phase::kComm);
    const ValueId kv = in_order(parts, "kv_again.all", false);
    const ValueId d_kv = new_value("d_kv.all", wide_, all);
    for (const auto& step : gathered_steps(core_, attributes_.ranks, attributes_.index)) {
      add_step(kv, d_kv, step, step.accumulate, step.accumulate);
    }
    const ValueId d_parts = in_order(d_kv, "d_kv.parts", true);
    const ValueId d_own = new_value("d_kv", wide_, own_kv_.shape);
    add("reduce_scatter", in_group, std::array{Operand{d_parts}, to(d_own)}, Phase::kComm);
    return d_own;
  }

  BackwardBuilder& builder_;
  const Node& finish_;
  const AttentionFinishAttributes attributes_;
  ValueId out_;
  ValueId d_out_;
  ValueId qkv_;
  ValueId lse_;
  ValueId d_q_;
  std::optional<ValueId> starts_;
  Value own_kv_;
  DType wide_ = DType::kF32;
  AttentionAttributes core_;
};

void finish_backward(BackwardBuilder& builder, const Node& node) {
  if (const std::optional<ValueId> d_out = builder.grad_of(node.operands[1])) {
    OuterBackward(builder, node, *d_out).build();
  }
}

ValueId outer_attention(GraphBuilder& builder, ValueId qkv, const ContextAttention& context,
                        std::string_view site) {
  return context.outer == 1 ? attention(builder, qkv, context.core, site, context.starts)
                            : OuterAttention(builder, qkv, context, site).build();
}

/// Exchanges heads for sequence, and back after the attention.
ValueId exchanged_attention(GraphBuilder& builder, ValueId qkv, const ContextAttention& context,
                            std::string_view site) {
  const AttentionAttributes& core = context.core;
  const int64_t runs = builder.value(qkv).shape[0] / core.sequence * context.inner_runs;
  const auto part = [&](std::string_view what) { return fmt::format("{}.{}", site, what); };
  const auto to_all = [&](ValueId x, std::string_view what) {
    return all_to_all(builder, x, context.inner_group, context.inner, part(what));
  };
  const ValueId by_rank = split_heads(builder, qkv,
                                      {.ranks = context.inner,
                                       .heads = core.heads,
                                       .kv_heads = core.kv_heads,
                                       .head_size = core.head_size},
                                      part("heads"));
  const ValueId own_heads = swap_blocks(builder, to_all(by_rank, "exchange"),
                                        {.outer = context.inner, .inner = runs}, part("sequences"));
  ContextAttention outer = context;
  outer.core.heads /= context.inner;
  outer.core.kv_heads /= context.inner;
  outer.core.sequence *= context.inner;
  const ValueId mixed = outer_attention(builder, own_heads, outer, part("mixed"));
  const ValueId parts =
      swap_blocks(builder, mixed, {.outer = runs, .inner = context.inner}, part("parts"));
  return split_heads(builder, to_all(parts, "exchange_back"),
                     {.ranks = context.inner,
                      .heads = core.heads,
                      .kv_heads = 0,
                      .head_size = core.head_size,
                      .inverse = true},
                     site);
}

}  // namespace

const OpDefinition kAttentionFinishOp{
    .name = "attention_finish",
    .summary = "Rounds what the steps of an attention over ranks have summed up.",
    .op_class = OpClass::kCopy,
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kAttention,
    .check = check_finish,
    .cost = elementwise_cost<0>,
    .backward = finish_backward,
    .recompute = Recompute::kNone,  // like the steps
    .split = kNeverSplit,
};

ValueId context_attention(GraphBuilder& builder, ValueId qkv, const ContextAttention& context,
                          std::string_view site) {
  ContextAttention resolved = context;
  if (resolved.core.scale == 0.0) {
    resolved.core.scale = 1.0 / std::sqrt(static_cast<double>(resolved.core.head_size));
  }
  return resolved.inner == 1 ? outer_attention(builder, qkv, resolved, site)
                             : exchanged_attention(builder, qkv, resolved, site);
}

}  // namespace braid
