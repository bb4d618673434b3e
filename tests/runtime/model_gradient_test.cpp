#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/cpu_executor.h"
#include "backends/run_ranks.h"
#include "base/philox.h"
#include "parallel/step_program.h"
#include "plan/run_plan.h"

namespace braid {
namespace {

struct Case {
  ModelStyle style;
  bool tied;
  int64_t kv_heads;
  const char* name;
  LayerPattern layers = 2;
  RouterSpec router = {};
  int64_t shared_ffn = 0;
  bool shared_gate = false;
  int64_t q_lora_rank = 0;
  RopeScaling rope_scaling = {};
  LoraSpec lora = {};
  bool documents = false;
  double z_loss = 0;
  int64_t sliding_window = 0;
  double partial_rotary_factor = 1;
  bool gemma = false;  ///< what Gemma 3 has beside its style
  RouterLosses router_losses = {};
};

bool has_attention(const LayerPattern& layers) {
  return layers.has(kAttentionBlock) || layers.has(kSlidingBlock);
}

/// One rank's gradients and losses in double precision, straight from the training program.
class DoubleModel {
 public:
  DoubleModel(const Case& which, int64_t microbatches)
      : spec_{.style = which.style,
              .layers = which.layers,
              .width = 12,
              .heads = 2,
              .kv_heads = has_attention(which.layers) ? which.kv_heads : 0,
              .head_size = has_attention(which.layers) ? 6 : 0,
              .sliding_window = which.sliding_window,
              .q_lora_rank = which.q_lora_rank,
              .kv_lora_rank = 7,
              .qk_nope_head_dim = 3,
              .qk_rope_head_dim = 4,
              .v_head_dim = 5,
              .mamba_num_heads = 4,
              .mamba_head_dim = 2,
              .ssm_state_size = 3,
              .mamba_n_groups = 2,
              .conv_kernel = 3,
              .mamba_chunk_size = 2,
              .ffn = 10,
              .experts = 4,
              .experts_per_token = 2,
              .expert_ffn = 6,
              .shared_ffn = which.shared_ffn,
              .shared_gate = which.shared_gate,
              .router = which.router,
              .vocabulary = 17,
              .max_positions = 7,
              .tied_embeddings = which.tied,
              .qkv_bias = !which.layers.has(kMlaBlock) && !which.layers.has(kMambaBlock),
              .norm_offset = which.gemma ? 1 : 0,
              .post_norms = which.gemma,
              .scale_embedding = which.gemma,
              .query_pre_attn_scalar = which.gemma ? 11 : 0,
              .partial_rotary_factor = which.partial_rotary_factor,
              .rope_local_base_freq = which.gemma ? 100.0 : 0.0,
              .rope_scaling = which.rope_scaling,
              .init_std = 0.3,
              .lora = which.lora},
        layout_(make_parameter_layout(model_parameters(spec_))),
        microbatches_(microbatches),
        documents_(which.documents),
        num_losses_(which.z_loss > 0 ? 2 * microbatches : microbatches),
        router_losses_(which.router_losses) {
    const TrainProgramOptions options{.microbatch = 2,
                                      .sequence = 5,
                                      .num_microbatches = microbatches,
                                      .dtype = DType::kF64,
                                      .z_loss = which.z_loss,
                                      .router_losses = which.router_losses,
                                      .documents = {.documents = which.documents},
                                      .update_weights = false};
    std::vector<Program> programs;
    programs.push_back(build_train_program(spec_, layout_, Mesh(MeshSizes{}), 0, options));
    RankPlan plan = plan_programs(std::move(programs));
    executor_ = std::make_unique<CpuExecutor>(
        std::move(plan.programs), std::move(plan.memory),
        CpuExecutorOptions{.num_workers = 2, .poison_step_arena = true});
    fill_inputs();
    fill_weights();
  }

  const ParameterLayout& layout() const { return layout_; }
  const ModelSpec& spec() const { return spec_; }

  double loss() {
    executor_->run(0);
    std::vector<double> losses(static_cast<size_t>(num_losses_));
    executor_->read("losses", 0, std::as_writable_bytes(std::span(losses)));
    return std::accumulate(losses.begin(), losses.end(), 0.0) + router_losses();
  }

  double read(const std::string& buffer, int64_t elem) {
    double value = 0;
    executor_->read(buffer, elem * 8, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  double weight(const std::string& parameter, int64_t elem) {
    const ParameterSlot& slot = layout_.slot(parameter);
    return read(param_buffer_name(layout_.units[slot.unit]), slot.begin + elem);
  }

  void write_weight(const std::string& parameter, int64_t elem, double value) {
    const ParameterSlot& slot = layout_.slot(parameter);
    write(param_buffer_name(layout_.units[slot.unit]), slot.begin + elem, value);
  }

  void write(const std::string& buffer, int64_t elem, double value) {
    executor_->write(buffer, elem * 8, std::as_bytes(std::span(&value, 1)));
  }

 private:
  /// Two numbers for each router, kind of loss and microbatch.
  double router_losses() {
    const auto moe_layers = std::ranges::count_if(
        layout_.parameters, [](const Parameter& it) { return it.name.ends_with("router.weight"); });
    const int64_t kinds = (router_losses_.balance > 0 || router_losses_.z > 0 ? 1 : 0) +
                          (router_losses_.sequence_balance > 0 ? 1 : 0);
    std::vector<double> losses(static_cast<size_t>(2 * kinds * moe_layers * microbatches_));
    if (!losses.empty()) {
      executor_->read(std::string(kRouterLossesBuffer), 0,
                      std::as_writable_bytes(std::span(losses)));
    }
    return std::accumulate(losses.begin(), losses.end(), 0.0);
  }

  void fill_inputs() {
    std::mt19937 random(1);
    std::vector<int32_t> tokens(static_cast<size_t>(microbatches_ * 10));
    std::vector<int32_t> labels(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(random() % 17);
      labels[i] = static_cast<int32_t>(random() % 17);
    }
    labels[3] = -1;  // an ignored label
    executor_->write("tokens", 0, std::as_bytes(std::span(tokens)));
    executor_->write("labels", 0, std::as_bytes(std::span(labels)));
    if (documents_) {
      std::vector<int32_t> starts;
      for (int64_t i = 0; i < 2 * microbatches_; ++i) {  // documents of 3 and 2, of 1 and 4 tokens
        const auto ends = i % 2 == 0 ? std::array{0, 0, 0, 3, 3} : std::array{0, 1, 1, 1, 1};
        starts.insert(starts.end(), ends.begin(), ends.end());
      }
      executor_->write("document_starts", 0, std::as_bytes(std::span(starts)));
    }
    const double scale = 1.0 / (static_cast<double>(labels.size()) - 1);
    executor_->write("loss_scale", 0, std::as_bytes(std::span(&scale, 1)));
  }

  // Norm weights away from 1 and biases away from 0, so that no term of a gradient vanishes.
  void fill_weights() {
    for (const ParameterUnit& unit : layout_.units) {
      for (int64_t i = 0; i < unit.num_elems; ++i) {
        write(param_buffer_name(unit), i,
              0.4 * philox_normal(stable_hash(unit.name.data(), unit.name.size()),
                                  static_cast<uint64_t>(i)));
      }
    }
  }

  ModelSpec spec_;
  ParameterLayout layout_;
  int64_t microbatches_;
  bool documents_;
  int64_t num_losses_;  // those of the log-sum-exp are behind the others
  RouterLosses router_losses_;
  std::unique_ptr<CpuExecutor> executor_;
};

/// The lengths of rows count as constants in the gradients of models with DoRA, so they
/// must not change with a weight: `hold` changes the trained lengths by as much, so that all gains
/// stay.
class HeldLengths {
 public:
  explicit HeldLengths(DoubleModel& model) : model_(model) {
    for (const Parameter& weight : model.layout().parameters) {
      for (const AdaptedMatrix& matrix : adapted_matrices(model.spec().lora, weight)) {
        for (int64_t row = 0; row < matrix.num_rows && !matrix.magnitude.empty(); ++row) {
          rows_.push_back({weight, matrix, row});
          Row& added = rows_.back();
          added.change = model_.weight(matrix.magnitude, added.number());
          added.base = length(added, false);
          added.adapted = length(added, true);
        }
      }
    }
  }

  void hold() {
    for (const Row& row : rows_) {
      const double trained = row.base + row.change;
      model_.write_weight(row.matrix.magnitude, row.number(),
                          trained * length(row, true) / row.adapted - row.base);
    }
  }
  void release() {
    for (const Row& row : rows_) {
      model_.write_weight(row.matrix.magnitude, row.number(), row.change);
    }
  }

 private:
  struct Row {
    const Parameter& weight;
    AdaptedMatrix matrix;
    int64_t index = 0;
    double change = 0;
    double base = 0;
    double adapted = 0;

    int64_t number() const { return matrix.first_row + index * matrix.row_stride; }
  };

  double length(const Row& row, bool with_adapter) {
    const int64_t in = row.weight.shape[1];
    const LoraSpec& lora = model_.spec().lora;
    double squares = 0;
    for (int64_t c = 0; c < in; ++c) {
      double value = model_.weight(row.weight.name, row.number() * in + c);
      for (int64_t r = 0; r < lora.rank && with_adapter; ++r) {
        value += lora.scale() * model_.weight(row.matrix.b, row.index * lora.rank + r) *
                 model_.weight(row.matrix.a, (row.matrix.a_row + r) * in + c);
      }
      squares += value * value;
    }
    return std::sqrt(squares);
  }

  DoubleModel& model_;
  std::vector<Row> rows_;
};

class ModelGradient : public testing::TestWithParam<Case> {};

// Gradients of whole models against central differences: autodiff, expansion over microbatches,
// accumulation and kernels together. With step h the truncation error is h^2 / 6 of the third
// derivative and the rounding error 1e-16 / h: near 1e-9.
TEST_P(ModelGradient, EqualsCentralDifferences) {
  constexpr double kStep = 1e-5;
  constexpr double kTolerance = 2e-8;
  DoubleModel model(GetParam(), 2);
  model.loss();
  HeldLengths lengths(model);
  for (const Parameter& parameter : model.layout().parameters) {
    if (parameter.frozen) {
      continue;
    }
    const bool is_length = parameter.name.find("magnitude") != std::string::npos;
    const auto loss_with = [&](const std::string& buffer, int64_t elem, double value) {
      model.write(buffer, elem, value);
      if (is_length) {
        return model.loss();
      }
      lengths.hold();
      const double loss = model.loss();
      lengths.release();
      return loss;
    };
    const ParameterSlot& slot = model.layout().slot(parameter.name);
    const ParameterUnit& unit = model.layout().units[slot.unit];
    // All of the small ones; of the others every 7th element, which no row length divides.
    const int64_t stride = parameter.shape.num_elems() > 100 ? 7 : 1;
    const int64_t valid = parameter.vocabulary_rows ? model.spec().vocabulary * parameter.shape[1]
                                                    : parameter.shape.num_elems();
    for (int64_t i = 0; i < valid; i += stride) {
      const int64_t elem = slot.begin + i;
      const double gradient = model.read(main_grad_buffer_name(unit), elem);
      const double weight = model.read(param_buffer_name(unit), elem);
      const double above = loss_with(param_buffer_name(unit), elem, weight + kStep);
      const double below = loss_with(param_buffer_name(unit), elem, weight - kStep);
      model.write(param_buffer_name(unit), elem, weight);
      model.loss();
      ASSERT_NEAR(gradient, (above - below) / (2 * kStep), kTolerance)
          << parameter.name << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ModelGradient,
    testing::Values(
        Case{kLlamaStyle, false, 1, "llama_gqa"}, Case{kLlamaStyle, true, 2, "llama_tied"},
        Case{kGpt2Style, true, 2, "gpt2"},
        Case{kLlamaStyle, false, 1, "llama_pattern",
             LayerPattern::parse("mlp attention attention+mlp")},
        Case{kGpt2Style, true, 2, "gpt2_pattern", LayerPattern::parse("attention mlp*2")},
        Case{kQwen3Style, true, 1, "qwen3_experts", LayerPattern::parse("attention+moe moe mlp")},
        Case{.style = kQwen3Style,
             .tied = true,
             .kv_heads = 1,
             .name = "biases_of_logits",
             .layers = LayerPattern::parse("attention+moe moe"),
             .router = {.logit_bias = true},
             .router_losses = {.balance = 0.3, .sequence_balance = 0.2, .z = 0.1}},
        Case{.style = kLlamaStyle,
             .tied = false,
             .kv_heads = 2,
             .name = "biases_of_sigmoids",
             .layers = LayerPattern::parse("attention+moe"),
             .router = {.sigmoid = true, .scale = 2.5, .logit_bias = true},
             .shared_ffn = 8,
             .router_losses = {.sequence_balance = 0.2}},
        Case{kOlmoeStyle,
             false,
             2,
             "olmoe",
             LayerPattern::parse("attention+moe"),
             {.normalize = false, .scale = 1.5}},
        Case{kLlamaStyle,
             false,
             2,
             "shared_expert",
             LayerPattern::parse("moe attention+moe"),
             {.sigmoid = true, .scale = 2.5, .groups = 2, .kept_groups = 1},
             8},
        Case{kLlamaStyle,
             true,
             2,
             "gated_expert",
             LayerPattern::parse("attention+moe"),
             {.normalize = false},
             8,
             true},
        Case{kQwen3Style,
             true,
             1,
             "expert_capacity",
             LayerPattern::parse("attention+moe moe"),
             {.expert_capacity = 0.7}},
        Case{kLlamaStyle,
             false,
             2,
             "expert_capacity_by_position",
             LayerPattern::parse("attention+moe"),
             {.sigmoid = true, .scale = 2.5, .expert_capacity = 1.0, .drops_by_position = true},
             8},
        Case{kLlamaStyle, false, 0, "latents", LayerPattern::parse("mla+mlp mla")},
        Case{.style = kLlamaStyle,
             .tied = true,
             .kv_heads = 0,
             .name = "deepseek",
             .layers = LayerPattern::parse("mla+mlp mla+moe"),
             .router = {.sigmoid = true, .scale = 2.5, .groups = 2, .kept_groups = 1},
             .shared_ffn = 8,
             .q_lora_rank = 8},
        Case{.style = kLlamaStyle,
             .tied = false,
             .kv_heads = 1,
             .name = "latents_and_attention",
             .layers = LayerPattern::parse("mla attention+mlp")},
        Case{.style = kGpt2Style,
             .tied = true,
             .kv_heads = 2,
             .name = "documents_gpt2",
             .documents = true},
        Case{.style = kLlamaStyle,
             .tied = false,
             .kv_heads = 1,
             .name = "documents_latents_and_attention",
             .layers = LayerPattern::parse("mla attention+mlp"),
             .documents = true},
        Case{.style = kLlamaStyle, .tied = true, .kv_heads = 1, .name = "z_loss", .z_loss = 0.05},
        Case{.style = kLlamaStyle,
             .tied = false,
             .kv_heads = 1,
             .name = "windows",
             .layers = LayerPattern::parse("sliding+mlp attention sliding"),
             .sliding_window = 3},
        Case{.style = kGpt2Style,
             .tied = true,
             .kv_heads = 2,
             .name = "windows_of_documents",
             .layers = LayerPattern::parse("sliding+mlp"),
             .documents = true,
             .sliding_window = 2},
        Case{.style = kMamba2Style,
             .tied = true,
             .kv_heads = 0,
             .name = "mamba2",
             .layers = LayerPattern::parse("M")},
        Case{.style = kNemotronHStyle,
             .tied = false,
             .kv_heads = 1,
             .name = "nemotron_h",
             .layers = LayerPattern::parse("ME*-"),
             .router = {.sigmoid = true, .scale = 2.5},
             .shared_ffn = 8},
        Case{.style = kLlamaStyle,
             .tied = false,
             .kv_heads = 1,
             .name = "yarn",
             .layers = LayerPattern::parse("mla attention+mlp"),
             .rope_scaling = {.type = RopeType::kYarn,
                              .factor = 8,
                              .original_max_position_embeddings = 64,
                              .mscale = 1,
                              .mscale_all_dim = 0.5}},
        Case{.style = kGemma3Style,
             .tied = true,
             .kv_heads = 1,
             .name = "gemma3",
             .layers = LayerPattern::parse("sliding+mlp attention+mlp"),
             .rope_scaling = {.type = RopeType::kLinear, .factor = 2},
             .sliding_window = 3,
             .gemma = true},
        Case{.style = kPhi3Style,
             .tied = false,
             .kv_heads = 1,
             .name = "longrope",
             .rope_scaling = {.type = RopeType::kLongrope,
                              .factor = 8,
                              .original_max_position_embeddings = 4,
                              .short_factor = "1, 1",
                              .long_factor = "1.5, 3"},
             .partial_rotary_factor = 0.7},
        Case{.style = kLlamaStyle,
             .tied = true,
             .kv_heads = 1,
             .name = "adapters",
             .lora = {.rank = 2, .alpha = 3, .targets = {"*"}}},
        Case{.style = kGpt2Style,
             .tied = true,
             .kv_heads = 2,
             .name = "some_adapters",
             .layers = LayerPattern::parse("mlp attention"),
             .lora = {.rank = 3, .alpha = 2, .targets = {"q", "v", "fc2"}}},
        Case{.style = kLlamaStyle,
             .tied = true,
             .kv_heads = 1,
             .name = "lengths",
             .lora = {.rank = 2, .alpha = 3, .magnitudes = true, .targets = {"*"}}},
        Case{.style = kGpt2Style,
             .tied = true,
             .kv_heads = 2,
             .name = "some_lengths",
             .layers = LayerPattern::parse("mlp attention"),
             .lora = {.rank = 3, .alpha = 2, .magnitudes = true, .targets = {"q", "v", "fc2"}}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace braid
