#include "model/forward.h"

#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "model/parameters.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/operand_checker.h"
#include "ops/rope.h"

namespace braid {
namespace {

/// Builds one model's forward; a member per block.
class ModelBuilder {
 public:
  ModelBuilder(const ModelSpec& spec, const ForwardOptions& options)
      : spec_(spec), options_(options), builder_(graph_) {
    for (Parameter& parameter : model_parameters(spec)) {
      shapes_.emplace(std::move(parameter.name), parameter.shape);
    }
  }

  StageGraph build() {
    // `branch` is what the next norm adds to the residual stream; the first norm has nothing to
    // add.
    Stream stream{.residual = embed()};
    for (int64_t layer = 0; layer < spec_.layers; ++layer) {
      builder_.set_scope(static_cast<int32_t>(layer), fmt::format("layers.{}", layer));
      stream.branch = attention_block(norm(stream, "attention_norm"));
      stream.branch = mlp_block(norm(stream, "mlp_norm"));
    }
    builder_.set_scope(-1, "head");
    finish(norm(stream, "norm"));
    return std::move(graph_);
  }

 private:
  struct Stream {
    ValueId residual;
    std::optional<ValueId> branch;
  };

  int64_t rows() const { return options_.microbatch * options_.sequence; }
  bool is_gpt2() const { return spec_.family == ModelFamily::kGpt2; }

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

  ValueId linear_at(ValueId x, std::string_view site) {
    return linear(builder_, x, scoped_param(fmt::format("{}.weight", site)), bias(site), site);
  }

  ValueId embed() {
    builder_.set_scope(-1, "embedding");
    const ValueId tokens = builder_.named_value(
        {.name = "tokens", .dtype = DType::kI32, .shape = {rows()}, .kind = ValueKind::kInput});
    std::optional<ValueId> positions;
    if (is_gpt2()) {
      if (options_.sequence > spec_.max_positions) {
        throw_config_error("train.sequence = {}: model.max_positions is {}", options_.sequence,
                           spec_.max_positions);
      }
      positions = scoped_param("positions");
    }
    return embedding(builder_, tokens, scoped_param("tokens"), positions, options_.sequence,
                     "rows");
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
    ValueId qkv = linear_at(x, "attention.qkv");
    if (!is_gpt2()) {
      qkv = rope(builder_, qkv,
                 {.heads = spec_.heads,
                  .kv_heads = spec_.kv_heads,
                  .head_size = spec_.head_size,
                  .sequence = options_.sequence,
                  .theta = spec_.rope_theta},
                 "attention.rope");
    }
    const ValueId mixed = attention(builder_, qkv,
                                    {.heads = spec_.heads,
                                     .kv_heads = spec_.kv_heads,
                                     .head_size = spec_.head_size,
                                     .sequence = options_.sequence,
                                     .scale = 0.0},
                                    "attention.core");
    return linear_at(mixed, "attention.proj");
  }

  ValueId mlp_block(ValueId x) {
    const ValueId hidden = linear_at(x, "mlp.fc1");
    const ValueId active =
        is_gpt2() ? gelu(builder_, hidden, "mlp.gelu") : swiglu(builder_, hidden, "mlp.swiglu");
    return linear_at(active, "mlp.fc2");
  }

  void finish(ValueId x) {
    const ValueId weight = param(spec_.tied_embeddings ? "embedding.tokens" : "head.output");
    if (options_.end == ForwardEnd::kLogits) {
      const ValueId logits = builder_.named_value({.name = "logits",
                                                   .dtype = options_.dtype,
                                                   .shape = {rows(), spec_.padded_vocabulary()},
                                                   .kind = ValueKind::kOutput});
      linear_into(builder_, x, weight, std::nullopt, logits, "logits");
      return;
    }
    const DType loss_dtype = accumulator_dtype(options_.dtype);
    const ValueId logits = linear(builder_, x, weight, std::nullopt, "logits");
    const ValueId labels = builder_.named_value(
        {.name = "labels", .dtype = DType::kI32, .shape = {rows()}, .kind = ValueKind::kInput});
    const ValueId scale = builder_.named_value(
        {.name = "loss_scale", .dtype = loss_dtype, .shape = {1}, .kind = ValueKind::kInput});
    const ValueId loss = builder_.named_value(
        {.name = "loss", .dtype = loss_dtype, .shape = {1}, .kind = ValueKind::kOutput});
    cross_entropy(builder_, logits, labels, scale, loss, spec_.vocabulary, "loss");
  }

  const ModelSpec& spec_;
  const ForwardOptions& options_;
  StageGraph graph_;
  GraphBuilder builder_;
  std::unordered_map<std::string, Shape> shapes_;
};

}  // namespace

StageGraph build_forward(const ModelSpec& spec, const ForwardOptions& options) {
  check_model(spec);
  return ModelBuilder(spec, options).build();
}

}  // namespace braid
