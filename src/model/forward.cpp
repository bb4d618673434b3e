#include "model/forward.h"

#include <cmath>
#include <utility>

#include "base/errors.h"
#include "model/block_builder.h"
#include "model/blocks/registry.h"
#include "model/mtp.h"
#include "ops/context_attention.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/operand_checker.h"
#include "ops/preference.h"

namespace braid {
namespace {

/// Builds the forward of one stage on one tensor rank out of blocks.
class StageBuilder {
 public:
  StageBuilder(const ModelSpec& spec, const ForwardOptions& options, const StageSlice& stage)
      : spec_(spec),
        options_(options),
        stage_(stage),
        tensor_(options.tensor),
        vocabulary_(local_vocabulary(spec, options.tensor)),
        block_builder_(graph_, spec, options, stage),
        builder_(block_builder_.graph()) {}

  StageGraph build() {
    // `branch` is what the next norm adds to the residual stream; the first norm has nothing to
    // add.
    Stream stream{.residual = stage_.has_embedding ? embed() : stage_input()};
    for (int64_t i = 0; i < stage_.num_layers; ++i) {
      const int64_t layer = stage_.first_layer + i;
      builder_.set_scope(static_cast<int32_t>(layer), fmt::format("layers.{}", layer));
      add_blocks(stream, spec_.layers[layer]);
    }
    if (stage_.has_head) {
      builder_.set_scope(-1, "head");
      const ValueId x = norm(stream, "norm");
      finish(x);
      if (options_.mtp) {
        add_mtp(x);
      }
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

  void add_blocks(Stream& stream, const LayerSpec& layer) {
    layer.for_each_block([&](const BlockDefinition& block) {
      stream.branch = block.forward(block_builder_, norm(stream, norm_name(block)));
      if (spec_.post_norms) {
        Stream result{.residual = *stream.branch};
        stream.branch = norm(result, post_norm_name(block));
      }
    });
  }

  int64_t rows() const { return block_builder_.rows(); }

  ValueId stage_input() {
    const int64_t local_rows = tensor_.splits_rows() ? rows() / tensor_.size : rows();
    graph_.stage_input = builder_.add_value({.name = "stage_input",
                                             .dtype = options_.dtype,
                                             .shape = {local_rows, spec_.width},
                                             .kind = ValueKind::kActivation});
    return *graph_.stage_input;
  }

  ValueId embed() {
    builder_.set_scope(-1, "embedding");
    EmbeddingAttributes attributes{.sequence = block_builder_.positioned_rows()};
    std::optional<ValueId> positions;
    std::optional<ValueId> starts;
    if (spec_.style.positions == PositionKind::kLearned) {
      const int64_t tokens = options_.cache ? options_.cache->capacity : options_.sequence;
      if (tokens > spec_.max_positions) {
        throw_config_error("train.sequence = {}: model.max_positions is {}", tokens,
                           spec_.max_positions);
      }
      positions = block_builder_.scoped_param("positions");
      attributes.adds_positions = tensor_.index == 0;
      attributes.at = block_builder_.positions();
      starts = block_builder_.document_starts();
    }
    return look_up({.tokens = row_input("tokens"),
                    .table = block_builder_.param("embedding.tokens"),
                    .positions = positions,
                    .starts = starts},
                   attributes, "rows");
  }

  ValueId look_up(const EmbeddingOperands& operands, EmbeddingAttributes attributes,
                  std::string_view site) {
    if (tensor_.is_split()) {
      attributes.vocabulary = spec_.vocabulary;
      attributes.vocabulary_begin = vocabulary_.begin;
    }
    const ValueId rows =
        block_builder_.sum_of_all(embedding(builder_, operands, attributes, site), site);
    return spec_.scale_embedding
               ? scale(builder_, rows, std::sqrt(spec_.width), fmt::format("{}.scaled", site))
               : rows;
  }

  /// An integer for each row of this rank.
  ValueId row_input(const std::string& name) { return block_builder_.row_input(name, rows()); }

  /// All depths of multi-token prediction behind the result of the last norm.
  void add_mtp(ValueId x) {
    for (int64_t index = 0; index < spec_.mtp_depth; ++index) {
      builder_.set_scope(mtp_layer_number(spec_, index), mtp_unit(index));
      Stream stream{.residual = mtp_input(index, x)};
      add_blocks(stream, mtp_layer(spec_));
      builder_.set_scope(-1, mtp_unit(index));
      x = norm(stream, "norm");
      add_loss(linear(builder_, output_projection(x), "logits"),
               {.labels = mtp_value(index, "labels"),
                .scale = mtp_value(index, "loss_scale"),
                .loss = mtp_value(index, "loss"),
                .z = mtp_value(index, kZLossValue)});
    }
  }

  /// The sum of the products of the depth's tokens and of the hidden state before it.
  ValueId mtp_input(int64_t index, ValueId hidden) {
    Stream tokens{.residual = look_up({.tokens = row_input(mtp_value(index, "tokens")),
                                       .table = block_builder_.param("embedding.tokens")},
                                      {.sequence = block_builder_.local_sequence()}, "embedding")};
    Stream before{.residual = hidden};
    const ValueId of_tokens = whole_linear(norm(tokens, "embedding_norm"), "embedding_projection");
    const ValueId of_hidden = whole_linear(norm(before, "hidden_norm"), "hidden_projection");
    return add(builder_, of_tokens, of_hidden, "input");
  }

  /// The product with a matrix that all tensor ranks hold, for the rows that this rank has.
  ValueId whole_linear(ValueId x, std::string_view site) {
    return linear(
        builder_,
        {.x = x, .weight = block_builder_.scoped_param(fmt::format("{}.weight", site)), .bias = {}},
        site);
  }

  /// Adds the branch to the residual stream and normalises the sum.
  ValueId norm(Stream& stream, const std::string& site) {
    const ValueId weight = block_builder_.scoped_param(fmt::format("{}.weight", site));
    const bool is_layernorm = spec_.style.norm == NormKind::kLayerNorm;
    if (!stream.branch) {
      return is_layernorm ? layernorm(builder_, stream.residual, weight, *block_builder_.bias(site),
                                      spec_.norm_epsilon, site)
                          : rmsnorm(builder_, stream.residual, weight, spec_.norm_epsilon, site,
                                    block_builder_.norm_offset());
    }
    const AddNormResult result =
        is_layernorm ? add_layernorm(builder_, *stream.branch, stream.residual, weight,
                                     *block_builder_.bias(site), spec_.norm_epsilon, site)
                     : add_rmsnorm(builder_, *stream.branch, stream.residual, weight,
                                   spec_.norm_epsilon, site, block_builder_.norm_offset());
    stream.residual = result.sum;
    return result.normed;
  }

  LinearOperands output_projection(ValueId x) {
    return {
        .x = block_builder_.to_all(x, "logits"),
        .weight = block_builder_.param(spec_.tied_embeddings ? "embedding.tokens" : "head.output"),
        .bias = {}};
  }

  void finish(ValueId x) {
    const LinearOperands projection = output_projection(x);
    if (options_.end == ForwardEnd::kLogits) {
      const ValueId logits = builder_.named_value({.name = "logits",
                                                   .dtype = options_.dtype,
                                                   .shape = {rows(), vocabulary_.rows},
                                                   .kind = ValueKind::kOutput});
      linear_into(builder_, projection, logits, "logits");
      return;
    }
    const ValueId logits = linear(builder_, projection, "logits");
    if (options_.preference) {
      add_preference_loss(logits, *options_.preference);
      return;
    }
    add_loss(
        logits,
        {.labels = "labels", .scale = "loss_scale", .loss = "loss", .z = std::string(kZLossValue)});
  }

  /// The full names of a loss and of what it needs from the host.
  struct LossNames {
    std::string labels;
    std::string scale;
    std::string loss;
    std::string z;
  };

  void add_loss(ValueId logits, const LossNames& names) {
    const auto number = [&](const std::string& name, ValueKind kind) {
      return builder_.named_value(
          {.name = name, .dtype = accumulator_dtype(options_.dtype), .shape = {1}, .kind = kind});
    };
    const ZLoss z{options_.z_loss};
    LossOperands operands{.logits = logits,
                          .labels = row_input(names.labels),
                          .loss_scale = number(names.scale, ValueKind::kInput),
                          .loss = number(names.loss, ValueKind::kOutput)};
    if (z.z_loss > 0) {
      operands.z = number(names.z, ValueKind::kOutput);
    }
    if (!tensor_.is_split()) {
      cross_entropy(builder_, operands, {.vocabulary = spec_.vocabulary, .z = z}, "loss");
      return;
    }
    sharded_cross_entropy(
        builder_,
        {.operands = operands,
         .shard = {.vocabulary = spec_.vocabulary, .vocabulary_begin = vocabulary_.begin},
         .z = z,
         .group = kTensorGroup,
         .num_ranks = tensor_.size},
        "loss");
  }

  void add_preference_loss(ValueId logits, PreferenceLossAttributes attributes) {
    const ContextShard& context = block_builder_.context();
    attributes.counts = context.index == 0;
    const auto number = [&](std::string_view name, const Shape& shape, ValueKind kind) {
      return builder_.named_value({.name = std::string(name),
                                   .dtype = accumulator_dtype(options_.dtype),
                                   .shape = shape,
                                   .kind = kind});
    };
    const int64_t sequences = options_.microbatch;
    PreferenceLoss loss{
        .logits = logits,
        .labels = row_input("labels"),
        .reference = number(kReferenceValue, {sequences, kReferenceColumns}, ValueKind::kInput),
        .loss = number("loss", {1}, ValueKind::kOutput),
        .figures = number(kPreferenceValue, {kPreferenceFigures}, ValueKind::kOutput),
        .shard = {.vocabulary = spec_.vocabulary, .vocabulary_begin = vocabulary_.begin},
        .group = kTensorGroup,
        .num_ranks = tensor_.size,
        .attributes = attributes};
    if (options_.sequence_losses) {
      loss.sequences = number(kSequenceLossesValue, {sequences}, ValueKind::kOutput);
    }
    const ContextAttention groups;
    if (context.inner > 1) {
      loss.token_groups.push_back(groups.inner_group);
    }
    if (context.outer() > 1) {
      loss.token_groups.push_back(groups.outer_group);
    }
    preference_loss(builder_, loss, "loss");
  }

  const ModelSpec& spec_;
  const ForwardOptions& options_;
  const StageSlice& stage_;
  const TensorShard& tensor_;
  LocalVocabulary vocabulary_;
  StageGraph graph_;
  BlockBuilder block_builder_;
  GraphBuilder& builder_;
};

}  // namespace

StageGraph build_forward(const ModelSpec& spec, const ForwardOptions& options) {
  check_model(spec);
  check_tensor_parallel(spec, options.tensor,
                        options.microbatch * options.sequence / options.context.size);
  check_context_parallel(spec, options.tensor, options.context, options.sequence);
  const StageSlice stage = options.stage.value_or(whole_model(spec));
  check_stage(spec, stage);
  return StageBuilder(spec, options, stage).build();
}

}  // namespace braid
