#include "model/forward.h"

#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "model/parameter_shard.h"
#include "ops/activation.h"
#include "ops/collectives.h"
#include "ops/context_attention.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/operand_checker.h"
#include "ops/rope.h"

namespace braid {
namespace {

constexpr std::string_view kTensorGroup = "tensor";

/// Builds the forward of one stage on one tensor rank; a member per block.
class ModelBuilder {
 public:
  ModelBuilder(const ModelSpec& spec, const ForwardOptions& options, const StageSlice& stage)
      : spec_(spec),
        options_(options),
        stage_(stage),
        tensor_(options.tensor),
        local_(local_sizes(spec, options.tensor)),
        builder_(graph_) {
    for (const Parameter& parameter : stage_parameters(spec, stage)) {
      shapes_.emplace(parameter.name, local_parameter(spec, parameter, tensor_).shape);
    }
  }

  StageGraph build() {
    // `branch` is what the next norm adds to the residual stream; the first norm has nothing to
    // add.
    Stream stream{.residual = stage_.has_embedding ? embed() : stage_input()};
    for (int64_t i = 0; i < stage_.num_layers; ++i) {
      const int64_t layer = stage_.first_layer + i;
      builder_.set_scope(static_cast<int32_t>(layer), fmt::format("layers.{}", layer));
      stream.branch = attention_block(norm(stream, "attention_norm"));
      stream.branch = mlp_block(norm(stream, "mlp_norm"));
    }
    if (stage_.has_head) {
      builder_.set_scope(-1, "head");
      finish(norm(stream, "norm"));
    } else {
      graph_.stage_output = stream.branch ? add(builder_, *stream.branch, stream.residual, "output")
                                          : stream.residual;
    }
    return std::move(graph_);
  }

 private:
  struct Stream {
    ValueId residual;
    std::optional<ValueId> branch;
  };

  /// Tokens of a sequence on this rank.
  int64_t sequence() const { return options_.sequence / options_.context.size; }
  int64_t rows() const { return options_.microbatch * sequence(); }
  TokenPositions positions() const {
    return options_.context.is_split() ? options_.context.positions(options_.sequence)
                                       : TokenPositions{};
  }
  bool is_gpt2() const { return spec_.family == ModelFamily::kGpt2; }

  ValueId stage_input() {
    const int64_t local_rows = tensor_.splits_rows() ? rows() / tensor_.size : rows();
    graph_.stage_input = builder_.add_value({.name = "stage_input",
                                             .dtype = options_.dtype,
                                             .shape = {local_rows, spec_.width},
                                             .kind = ValueKind::kActivation});
    return *graph_.stage_input;
  }

  /// Into a matrix whose rows are split: all ranks need all of x, and each adds to its gradient.
  ValueId to_all(ValueId x, std::string_view site) {
    const std::string input = fmt::format("{}.input", site);
    if (!tensor_.is_split()) {
      return x;
    }
    return tensor_.sequence_parallel ? all_gather(builder_, x, kTensorGroup, tensor_.size, input)
                                     : identity(builder_, x, kTensorGroup, input);
  }

  /// Out of a matrix whose columns are split: every rank has an addend of y.
  ValueId sum_of_all(ValueId y, std::string_view site) {
    const std::string sum = fmt::format("{}.sum", site);
    if (!tensor_.is_split()) {
      return y;
    }
    return tensor_.sequence_parallel ? reduce_scatter(builder_, y, kTensorGroup, tensor_.size, sum)
                                     : all_reduce(builder_, y, kTensorGroup, sum);
  }

  ValueId param(const std::string& name) {
    const auto found = shapes_.find(name);
    check(found != shapes_.end(), "the model has no parameter {}", name);
    return builder_.named_value(
        {.name = name, .dtype = options_.dtype, .shape = found->second, .kind = ValueKind::kParam});
  }

  ValueId scoped_param(std::string_view name) { return param(builder_.scoped(name)); }

  std::optional<ValueId> bias(std::string_view site) {
    const std::string name = builder_.scoped(fmt::format("{}.bias", site));
    return shapes_.contains(name) ? std::optional(param(name)) : std::nullopt;
  }

  /// Rows of the weight are split.
  ValueId column_linear(ValueId x, std::string_view site) {
    return linear(builder_,
                  {.x = to_all(x, site),
                   .weight = scoped_param(fmt::format("{}.weight", site)),
                   .bias = bias(site)},
                  site);
  }

  /// Columns of the weight are split. All ranks hold the bias, and one adds it.
  ValueId row_linear(ValueId x, std::string_view site) {
    const std::optional<ValueId> all_of_bias = bias(site);
    const ValueId y = linear(builder_,
                             {.x = x,
                              .weight = scoped_param(fmt::format("{}.weight", site)),
                              .bias = all_of_bias,
                              .adds_bias = !all_of_bias || tensor_.index == 0},
                             site);
    return sum_of_all(y, site);
  }

  ValueId embed() {
    builder_.set_scope(-1, "embedding");
    EmbeddingOperands operands{
        .tokens = builder_.named_value(
            {.name = "tokens", .dtype = DType::kI32, .shape = {rows()}, .kind = ValueKind::kInput}),
        .table = scoped_param("tokens"),
        .positions = {}};
    EmbeddingAttributes attributes{.sequence = sequence()};
    if (is_gpt2()) {
      if (options_.sequence > spec_.max_positions) {
        throw_config_error("train.sequence = {}: model.max_positions is {}", options_.sequence,
                           spec_.max_positions);
      }
      operands.positions = scoped_param("positions");
      attributes.adds_positions = tensor_.index == 0;
      attributes.at = positions();
    }
    if (tensor_.is_split()) {
      attributes.vocabulary = spec_.vocabulary;
      attributes.vocabulary_begin = local_.vocabulary_begin;
    }
    return sum_of_all(embedding(builder_, operands, attributes, "rows"), "rows");
  }

  /// Adds the branch to the residual stream and normalises the sum.
  ValueId norm(Stream& stream, std::string_view site) {
    const ValueId weight = scoped_param(fmt::format("{}.weight", site));
    if (!stream.branch) {
      return is_gpt2() ? layernorm(builder_, stream.residual, weight, *bias(site),
                                   spec_.norm_epsilon, site)
                       : rmsnorm(builder_, stream.residual, weight, spec_.norm_epsilon, site);
    }
    const AddNormResult result = is_gpt2()
                                     ? add_layernorm(builder_, *stream.branch, stream.residual,
                                                     weight, *bias(site), spec_.norm_epsilon, site)
                                     : add_rmsnorm(builder_, *stream.branch, stream.residual,
                                                   weight, spec_.norm_epsilon, site);
    stream.residual = result.sum;
    return result.normed;
  }

  ValueId attention_block(ValueId x) {
    ValueId qkv = column_linear(x, "attention.qkv");
    if (!is_gpt2()) {
      qkv = rope(builder_, qkv,
                 {.heads = local_.heads,
                  .kv_heads = local_.kv_heads,
                  .head_size = spec_.head_size,
                  .sequence = sequence(),
                  .theta = spec_.rope_theta,
                  .positions = positions()},
                 "attention.rope");
    }
    const ContextShard& context = options_.context;
    const ValueId mixed = context_attention(builder_, qkv,
                                            {.core = {.heads = local_.heads,
                                                      .kv_heads = local_.kv_heads,
                                                      .head_size = spec_.head_size,
                                                      .sequence = sequence(),
                                                      .scale = 0.0},
                                             .inner = context.inner,
                                             .inner_runs = context.runs(options_.sequence),
                                             .outer = context.outer(),
                                             .outer_index = context.outer_index(),
                                             .method = context.method},
                                            "attention.core");
    return row_linear(mixed, "attention.proj");
  }

  ValueId mlp_block(ValueId x) {
    const ValueId hidden = column_linear(x, "mlp.fc1");
    const ValueId active =
        is_gpt2() ? gelu(builder_, hidden, "mlp.gelu") : swiglu(builder_, hidden, "mlp.swiglu");
    return row_linear(active, "mlp.fc2");
  }

  void finish(ValueId x) {
    const LinearOperands projection{
        .x = to_all(x, "logits"),
        .weight = param(spec_.tied_embeddings ? "embedding.tokens" : "head.output"),
        .bias = {}};
    if (options_.end == ForwardEnd::kLogits) {
      const ValueId logits = builder_.named_value({.name = "logits",
                                                   .dtype = options_.dtype,
                                                   .shape = {rows(), local_.vocabulary_rows},
                                                   .kind = ValueKind::kOutput});
      linear_into(builder_, projection, logits, "logits");
      return;
    }
    add_loss(linear(builder_, projection, "logits"));
  }

  void add_loss(ValueId logits) {
    const DType loss_dtype = accumulator_dtype(options_.dtype);
    const ValueId labels = builder_.named_value(
        {.name = "labels", .dtype = DType::kI32, .shape = {rows()}, .kind = ValueKind::kInput});
    const ValueId scale = builder_.named_value(
        {.name = "loss_scale", .dtype = loss_dtype, .shape = {1}, .kind = ValueKind::kInput});
    const ValueId loss = builder_.named_value(
        {.name = "loss", .dtype = loss_dtype, .shape = {1}, .kind = ValueKind::kOutput});
    if (!tensor_.is_split()) {
      cross_entropy(builder_, logits, labels, scale, loss, spec_.vocabulary, "loss");
      return;
    }
    sharded_cross_entropy(
        builder_,
        {.logits = logits,
         .labels = labels,
         .loss_scale = scale,
         .loss = loss,
         .shard = {.vocabulary = spec_.vocabulary, .vocabulary_begin = local_.vocabulary_begin},
         .group = kTensorGroup,
         .num_ranks = tensor_.size},
        "loss");
  }

  const ModelSpec& spec_;
  const ForwardOptions& options_;
  const StageSlice& stage_;
  const TensorShard& tensor_;
  LocalSizes local_;
  StageGraph graph_;
  GraphBuilder builder_;
  std::unordered_map<std::string, Shape> shapes_;
};

}  // namespace

StageGraph build_forward(const ModelSpec& spec, const ForwardOptions& options) {
  check_model(spec);
  check_tensor_parallel(spec, options.tensor,
                        options.microbatch * options.sequence / options.context.size);
  check_context_parallel(spec, options.tensor, options.context, options.sequence);
  const StageSlice stage = options.stage.value_or(whole_model(spec));
  check_stage(spec, stage);
  return ModelBuilder(spec, options, stage).build();
}

}  // namespace braid
