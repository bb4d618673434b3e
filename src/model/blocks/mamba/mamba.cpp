#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "base/nearest_divisor.h"
#include "model/block_builder.h"
#include "model/blocks/registry.h"
#include "ops/cached_mamba2.h"
#include "ops/collectives.h"
#include "ops/context_layout.h"
#include "ops/mamba2.h"
#include "ops/mamba2_section.h"

namespace braid {
namespace {

constexpr std::array kNeededSizes = {SizeKey{"mamba_num_heads", &ModelSpec::mamba_num_heads},
                                     SizeKey{"mamba_head_dim", &ModelSpec::mamba_head_dim},
                                     SizeKey{"ssm_state_size", &ModelSpec::ssm_state_size}};

/// The sizes of the op for all heads.
Mamba2Attributes sizes_of(const ModelSpec& spec) {
  return {.heads = spec.mamba_num_heads,
          .head_size = spec.mamba_head_dim,
          .groups = spec.mamba_n_groups,
          .state = spec.ssm_state_size,
          .chunk = spec.mamba_chunk_size,
          .norm_groups = spec.mamba_n_groups,
          .dt_min = spec.mamba_dt_min,
          .dt_max =
              spec.mamba_dt_max == 0 ? std::numeric_limits<double>::infinity() : spec.mamba_dt_max,
          .epsilon = spec.norm_epsilon};
}

/// Values of published models where a key is not given.
void derive_sizes(ModelSpec& spec) {
  if (!spec.layers.has(kMambaBlock)) {
    return;
  }
  const auto derive = [](int64_t& size, int64_t usual) { size = size == 0 ? usual : size; };
  derive(spec.mamba_n_groups, 1);
  derive(spec.conv_kernel, 4);
  derive(spec.mamba_chunk_size, 128);
}

void check_sizes(const ModelSpec& spec) {
  for (const SizeKey& key : kNeededSizes) {
    require_positive_size(key.name, spec.*key.size);
  }
  require_positive_size("mamba_n_groups", spec.mamba_n_groups);
  require_positive_size("conv_kernel", spec.conv_kernel);
  require_positive_size("mamba_chunk_size", spec.mamba_chunk_size);
  if (spec.mamba_num_heads % spec.mamba_n_groups != 0) {
    throw_config_error(
        "model.mamba_n_groups = {}: must divide model.mamba_num_heads = {}; set "
        "model.mamba_n_groups = {}",
        spec.mamba_n_groups, spec.mamba_num_heads,
        std::gcd(spec.mamba_num_heads, spec.mamba_n_groups));
  }
  if (!(spec.mamba_dt_min >= 0 && spec.mamba_dt_min <= sizes_of(spec).dt_max)) {
    throw_config_error("model.mamba_dt_min = {}: must be from 0 to model.mamba_dt_max = {}",
                       spec.mamba_dt_min, spec.mamba_dt_max);
  }
  if (spec.style.norm != NormKind::kRmsNorm || spec.style.linear_biases) {
    throw_config_error(
        "model.family: layers with \"mamba\" have RMSNorm and no biases; set model.family = "
        "\"mamba2\", \"nemotron_h\" or \"llama\", or use no \"mamba\" in model.pattern");
  }
}

/// Groups have heads, B, C and a norm of their own.
std::optional<std::string> tensor_fault(const ModelSpec& spec, int64_t ranks) {
  return spec.mamba_n_groups % ranks == 0
             ? std::nullopt
             : std::optional(
                   fmt::format("must divide model.mamba_n_groups = {}", spec.mamba_n_groups));
}

/// The convolution reads rows of no more than one section in front of a rank's.
void check_sections(const ModelSpec& spec, const ContextShard& context, int64_t sequence) {
  const int64_t sections = context.sections(sequence).count();
  const int64_t before = spec.conv_kernel - 1;
  if (before < 1) {
    throw_config_error(
        "parallel.mamba_context = \"states\": needs model.conv_kernel = 2 at least, which is {}; "
        "set "
        "parallel.mamba_context = \"heads\"",
        spec.conv_kernel);
  }
  if (sequence / sections < before) {
    throw_config_error(
        "train.sequence = {}: parallel.mamba_context = \"states\" needs runs of model.conv_kernel "
        "- 1 "
        "= {} tokens at least, and parallel.context = {} makes {} runs; set train.sequence = {}",
        sequence, before, context.size, sections, before * sections);
  }
}

/// Context ranks exchange groups of heads for sequence, all of them in one group; or states.
void check_context(const ModelSpec& spec, const TensorShard& tensor, const ContextShard& context,
                   const ContextLimits& limits) {
  if (context.mamba == MambaContext::kStates) {
    check_sections(spec, context, limits.sequence);
    return;
  }
  const int64_t groups = spec.mamba_n_groups / tensor.size;
  if (groups % context.size != 0) {
    throw_config_error(
        "parallel.context = {}: context ranks exchange heads of layers with \"mamba\", and must "
        "divide the {} groups (model.mamba_n_groups) of a tensor rank; the nearest that does is "
        "{}; "
        "or set parallel.mamba_context = \"states\"",
        context.size, groups, nearest_divisor(groups, context.size));
  }
  if (context.inner > 1 && context.outer() > 1) {
    throw_config_error(
        "parallel.context_inner = {}: layers with \"mamba\" exchange heads among all {} context "
        "ranks; set parallel.context_method = \"a2a\", \"ring\" or \"all_gather\", or "
        "parallel.mamba_context = \"states\"",
        context.inner, context.size);
  }
}

/// A state decays at most at this rate in a step of 1.
constexpr double kLargestDecay = 16.0;
constexpr double kSmallestStep = 0.001;
constexpr double kLargestStep = 0.1;

void add_parameters(ParameterList& list, const ModelSpec& spec) {
  const Mamba2Attributes a = sizes_of(spec);
  const HeadRows of_heads{a.heads, a.head_size};
  const HeadRows of_groups{a.groups, a.state};
  const HeadRows one_each{a.heads, 1};
  list.linear("mamba.in_proj", {.out = a.row_elems(),
                                .in = spec.width,
                                .split = TensorSplit::kHeads,
                                .heads = {of_heads, of_heads, of_groups, of_groups, one_each}});
  const double bound = 1.0 / std::sqrt(static_cast<double>(spec.conv_kernel));
  const Parameter uniform{.init = ParameterInit::kUniform, .init_low = -bound, .init_high = bound};
  const Parameter steps{.init = ParameterInit::kSoftplusIsLogUniform,
                        .init_low = kSmallestStep,
                        .init_high = kLargestStep};
  const Parameter decays{
      .init = ParameterInit::kLogOfUniform, .init_low = 1.0, .init_high = kLargestDecay};
  const Parameter ones{.init = ParameterInit::kOnes};
  const auto add = [&](std::string_view name, const Shape& shape,
                       const std::vector<HeadRows>& heads, Parameter parameter) {
    parameter.shape = shape;
    parameter.weight_decay = shape.rank() == 2;
    parameter.split = TensorSplit::kHeads;
    parameter.heads = heads;
    list.add(name, std::move(parameter));
  };
  const std::vector<HeadRows> convolved{of_heads, of_groups, of_groups};
  add("mamba.conv.weight", {a.convolved(), spec.conv_kernel}, convolved, uniform);
  add("mamba.conv.bias", {a.convolved()}, convolved, uniform);
  add("mamba.dt_bias", {a.heads}, {one_each}, steps);
  add("mamba.a_log", {a.heads}, {one_each}, decays);
  add("mamba.skip", {a.heads}, {one_each}, ones);
  add("mamba.norm.weight", {a.inner()}, {of_heads}, ones);
  list.linear("mamba.out_proj", {.out = spec.width,
                                 .in = a.inner(),
                                 .split = TensorSplit::kColumns,
                                 .std_scale = list.residual_scale()});
}

/// The same sizes for one of `ranks` ranks.
Mamba2Attributes shared_by(Mamba2Attributes a, int64_t ranks) {
  a.heads /= ranks;
  a.groups /= ranks;
  a.norm_groups /= ranks;
  return a;
}

/// Exchanges of heads for sequence between context ranks, and back. `whole`: sizes of all heads of
/// this tensor rank.
class SequenceExchange {
 public:
  SequenceExchange(BlockBuilder& builder, const Mamba2Attributes& whole)
      : builder_(builder), whole_(whole), ranks_(builder.context().size) {}

  /// From the rank's tokens of all heads to all tokens, in order of position, of the rank's heads.
  ValueId to_sequences(ValueId rows) {
    const ValueId parts = split_heads(builder_.graph(), rows,
                                      {.ranks = ranks_,
                                       .heads = whole_.heads,
                                       .head_size = whole_.head_size,
                                       .states = {.groups = whole_.groups, .state = whole_.state}},
                                      "mamba.heads");
    return in_order(to_all(parts, "mamba.exchange"), "mamba.sequences", false);
  }

  ValueId to_tokens(ValueId mixed) {
    const ValueId parts = in_order(mixed, "mamba.parts", true);
    return split_heads(
        builder_.graph(), to_all(parts, "mamba.exchange_back"),
        {.ranks = ranks_, .heads = whole_.heads, .head_size = whole_.head_size, .inverse = true},
        "mamba.tokens");
  }

 private:
  ValueId to_all(ValueId x, std::string_view site) {
    return all_to_all(builder_.graph(), x, "context", ranks_, site);
  }

  /// Between rows rank by rank and rows in order of position.
  ValueId in_order(ValueId x, std::string_view site, bool inverse) {
    GraphBuilder& graph = builder_.graph();
    const ContextShard& context = builder_.context();
    if (context.outer() > 1) {
      return zigzag_order(
          graph, x, {.ranks = ranks_, .sequence = builder_.local_sequence(), .inverse = inverse},
          site);
    }
    const int64_t sequences = builder_.rows() / builder_.local_sequence();
    const int64_t runs = sequences * context.runs(builder_.sequence());
    return inverse ? swap_blocks(graph, x, {.outer = runs, .inner = ranks_}, site)
                   : swap_blocks(graph, x, {.outer = ranks_, .inner = runs}, site);
  }

  BlockBuilder& builder_;
  const Mamba2Attributes& whole_;
  int64_t ranks_;
};

Mamba2Operands operands_of(BlockBuilder& builder, ValueId rows) {
  return {.zxbcdt = rows,
          .conv_weight = builder.scoped_param("mamba.conv.weight"),
          .conv_bias = builder.scoped_param("mamba.conv.bias"),
          .dt_bias = builder.scoped_param("mamba.dt_bias"),
          .a_log = builder.scoped_param("mamba.a_log"),
          .skip = builder.scoped_param("mamba.skip"),
          .norm_weight = builder.scoped_param("mamba.norm.weight")};
}

/// v of the rank's rows, from whole sequences of its part of the heads.
ValueId with_exchanged_heads(BlockBuilder& builder, ValueId rows, const Mamba2Attributes& whole) {
  const ContextShard& context = builder.context();
  Mamba2Attributes a = shared_by(whole, context.size);
  a.sequence = builder.sequence();
  a.weights = {.count = context.size, .index = context.index};
  SequenceExchange exchange(builder, whole);
  const Mamba2Operands operands = operands_of(builder, exchange.to_sequences(rows));
  return exchange.to_tokens(mamba2(builder.graph(), operands, a, "mamba.core"));
}

/// v of the rank's rows, from the states in front of them.
ValueId with_passed_states(BlockBuilder& builder, ValueId rows, Mamba2Attributes a) {
  const ContextSections sections = builder.context().sections(builder.sequence());
  a.sequence = builder.sequence() / sections.count();
  return mamba2_over_context(builder.graph(), operands_of(builder, rows), a, sections, "context",
                             "mamba.core");
}

ValueId mix(BlockBuilder& builder, ValueId rows) {
  Mamba2Attributes a = shared_by(sizes_of(builder.spec()), builder.tensor().size);
  if (builder.context().is_split()) {
    return builder.context().mamba == MambaContext::kStates
               ? with_passed_states(builder, rows, a)
               : with_exchanged_heads(builder, rows, a);
  }
  a.sequence = builder.sequence();
  const Mamba2Operands operands = operands_of(builder, rows);
  const auto cache = builder.cache();
  return cache ? cached_mamba2(builder.graph(), operands, *cache, a, "mamba.core")
               : mamba2(builder.graph(), operands, a, "mamba.core");
}

ValueId forward(BlockBuilder& builder, ValueId x) {
  const ValueId rows = builder.column_linear(x, "mamba.in_proj");
  return builder.row_linear(mix(builder, rows), "mamba.out_proj");
}

/// Half of the flops of ops/mamba2.cpp.
BlockCost cost(const ModelSpec& spec, int64_t sequence) {
  const Mamba2Attributes a = sizes_of(spec);
  const auto width = static_cast<double>(spec.width);
  const auto row = static_cast<double>(a.row_elems());
  const auto inner = static_cast<double>(a.inner());
  const auto heads = static_cast<double>(a.heads);
  const auto state = static_cast<double>(a.state);
  const auto chunk = static_cast<double>(std::min(a.chunk, sequence));
  const auto conv = static_cast<double>(spec.conv_kernel * a.convolved());
  return {
      .weights = width * (row + inner),
      .mixing = static_cast<double>(a.groups) * chunk * state + inner * (chunk + 2 * state) + conv,
      .mixing_backward = heads * 3 * chunk * state + inner * (2 * chunk + 5 * state) + 3 * conv,
      .kept_elems = 2 * width + row + 2 * inner,
      .widest = std::max(width, row)};
}

void add_hf_tensors(HfTensorList& list, const ModelSpec& spec, HfNaming naming) {
  if (naming != HfNaming::kBackbone) {
    throw_config_error("model.pattern: such files have no block \"mamba\"");
  }
  const Mamba2Attributes a = sizes_of(spec);
  list.add_norm("norm", spec, "mamba_norm");
  list.add("mixer.in_proj.weight", {a.row_elems(), spec.width}, "mamba.in_proj.weight");
  list.add("mixer.conv1d.weight", {a.convolved(), 1, spec.conv_kernel}, "mamba.conv.weight");
  list.add("mixer.conv1d.bias", {a.convolved()}, "mamba.conv.bias");
  list.add("mixer.dt_bias", {a.heads}, "mamba.dt_bias");
  list.add("mixer.A_log", {a.heads}, "mamba.a_log");
  list.add("mixer.D", {a.heads}, "mamba.skip");
  list.add("mixer.norm.weight", {a.inner()}, "mamba.norm.weight");
  list.add("mixer.out_proj.weight", {spec.width, a.inner()}, "mamba.out_proj.weight");
}

}  // namespace

/// Mamba-2: one projection to gate, x, B, C and dt, a convolution and a state space per head, a
/// gated norm, and a projection back. Groups of heads share B, C and a norm; tensor ranks hold
/// whole groups, and so five runs of rows of the first projection. Context ranks exchange heads for
/// sequence around the middle part, of whose weights each uses its heads' part, or pass states.
/// Source: Dao and Gu, Transformers are SSMs, 2024, section 7; initial values as in its published
/// code.
extern const BlockDefinition kMambaBlock{.name = "mamba",
                                         .role = BlockRole::kMixer,
                                         .carries_state = true,
                                         .needed_sizes = kNeededSizes,
                                         .derive_sizes = derive_sizes,
                                         .check_sizes = check_sizes,
                                         .tensor_fault = tensor_fault,
                                         .check_context = check_context,
                                         .add_parameters = add_parameters,
                                         .forward = forward,
                                         .cost = cost,
                                         .add_hf_tensors = add_hf_tensors};

}  // namespace braid
