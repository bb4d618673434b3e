#include "model/model_spec.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "model/parameters.h"

namespace braid {
namespace {

ModelSpec gpt2(int64_t layers, int64_t width, int64_t heads) {
  return {.family = ModelFamily::kGpt2,
          .layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = heads,
          .head_size = width / heads,
          .ffn = 4 * width,
          .vocabulary = 50257,
          .max_positions = 1024,
          .tied_embeddings = true,
          .qkv_bias = true};
}

struct LlamaShape {
  int64_t layers, width, heads, kv_heads, head_size, ffn;
  bool tied;
};

ModelSpec llama(const LlamaShape& shape) {
  return {.family = ModelFamily::kLlama,
          .layers = shape.layers,
          .width = shape.width,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_size = shape.head_size,
          .ffn = shape.ffn,
          .vocabulary = 128256,
          .max_positions = 131072,
          .tied_embeddings = shape.tied,
          .rope_theta = 500000.0};
}

ModelSpec qwen(const LlamaShape& shape, int64_t vocabulary) {
  ModelSpec spec = llama(shape);
  spec.vocabulary = vocabulary;
  spec.max_positions = 32768;
  spec.qkv_bias = true;
  spec.rope_theta = 1000000.0;
  spec.norm_epsilon = 1e-6;
  return spec;
}

constexpr std::string_view kGpt2Paper =
    "Radford et al., Language models are unsupervised multitask learners, 2019";
constexpr std::string_view kLlama32 = "Meta, Llama 3.2 model card, 2024";
constexpr std::string_view kLlama31 =
    "Grattafiori et al., The Llama 3 herd of models, 2024, table 3";
constexpr std::string_view kQwen25 = "Qwen team, Qwen2.5 technical report, 2024, table 1";

const std::vector<ModelPreset>& presets() {
  static const std::vector<ModelPreset> kPresets = {
      {"gpt2-124m", kGpt2Paper, gpt2(12, 768, 12)},
      {"gpt2-355m", kGpt2Paper, gpt2(24, 1024, 16)},
      {"gpt2-774m", kGpt2Paper, gpt2(36, 1280, 20)},
      {"gpt2-1.5b", kGpt2Paper, gpt2(48, 1600, 25)},
      {"llama-1b", kLlama32, llama({16, 2048, 32, 8, 64, 8192, true})},
      {"llama-3b", kLlama32, llama({28, 3072, 24, 8, 128, 8192, true})},
      {"llama-8b", kLlama31, llama({32, 4096, 32, 8, 128, 14336, false})},
      {"llama-70b", kLlama31, llama({80, 8192, 64, 8, 128, 28672, false})},
      {"llama-405b", kLlama31, llama({126, 16384, 128, 8, 128, 53248, false})},
      {"qwen2.5-0.5b", kQwen25, qwen({24, 896, 14, 2, 64, 4864, true}, 151936)},
      {"qwen2.5-1.5b", kQwen25, qwen({28, 1536, 12, 2, 128, 8960, true}, 151936)},
      {"qwen2.5-3b", kQwen25, qwen({36, 2048, 16, 2, 128, 11008, true}, 151936)},
      {"qwen2.5-7b", kQwen25, qwen({28, 3584, 28, 4, 128, 18944, false}, 152064)},
      {"qwen2.5-14b", kQwen25, qwen({48, 5120, 40, 8, 128, 13824, false}, 152064)},
      {"qwen2.5-32b", kQwen25, qwen({64, 5120, 40, 8, 128, 27648, false}, 152064)},
  };
  return kPresets;
}

void require_positive(std::string_view key, int64_t value) {
  if (value < 1) {
    throw_config_error("model.{} = {}: must be at least 1", key, value);
  }
}

}  // namespace

std::span<const ModelPreset> model_presets() {
  return presets();
}

const ModelPreset& find_preset(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ModelPreset& preset : presets()) {
    if (preset.name == name) {
      return preset;
    }
    names.push_back(preset.name);
  }
  throw_config_error("model.preset = \"{}\": not one of {}{}", name, join(names, ", "),
                     did_you_mean(name, names));
}

void check_model(const ModelSpec& spec) {
  require_positive("layers", spec.layers);
  require_positive("width", spec.width);
  require_positive("heads", spec.heads);
  require_positive("kv_heads", spec.kv_heads);
  require_positive("head_size", spec.head_size);
  require_positive("ffn", spec.ffn);
  require_positive("vocabulary", spec.vocabulary);
  if (spec.heads % spec.kv_heads != 0) {
    throw_config_error("model.kv_heads = {}: must divide model.heads = {}; set model.kv_heads = {}",
                       spec.kv_heads, spec.heads, std::gcd(spec.heads, spec.kv_heads));
  }
  if (spec.family == ModelFamily::kLlama && spec.head_size % 2 != 0) {
    throw_config_error(
        "model.head_size = {}: must be even for rotary embeddings; set model.head_size = {}",
        spec.head_size, spec.head_size + 1);
  }
  if (spec.family == ModelFamily::kGpt2) {
    require_positive("max_positions", spec.max_positions);
  }
}

int64_t qkv_width(const ModelSpec& spec) {
  return (spec.heads + 2 * spec.kv_heads) * spec.head_size;
}

int64_t num_parameters(const ModelSpec& spec) {
  int64_t total = 0;
  for (const Parameter& parameter : model_parameters(spec)) {
    const bool padded = parameter.vocabulary_rows;
    total += padded ? spec.vocabulary * parameter.shape[1] : parameter.shape.num_elems();
  }
  return total;
}

int64_t num_matrix_parameters(const ModelSpec& spec) {
  const int64_t ffn_matrices = spec.family == ModelFamily::kLlama ? 3 : 2;
  const int64_t attention = spec.width * qkv_width(spec) + spec.heads * spec.head_size * spec.width;
  return spec.layers * (attention + ffn_matrices * spec.width * spec.ffn) +
         spec.width * spec.vocabulary;
}

double train_flops_per_token(const ModelSpec& spec, int64_t sequence) {
  const double attention = static_cast<double>(spec.layers * spec.heads * spec.head_size) *
                           static_cast<double>(sequence);
  return 6.0 * (static_cast<double>(num_matrix_parameters(spec)) + attention);
}

std::string describe_model(const ModelSpec& spec) {
  return fmt::format(
      "{}: {} layers, width {}, {} heads ({} kv) of {}, ffn {}, vocabulary {}{}, {:.2f} M "
      "parameters",
      spec.family == ModelFamily::kLlama ? "llama" : "gpt2", spec.layers, spec.width, spec.heads,
      spec.kv_heads, spec.head_size, spec.ffn, spec.vocabulary,
      spec.tied_embeddings ? " (tied)" : "", static_cast<double>(num_parameters(spec)) * 1e-6);
}

}  // namespace braid
