#include "plan/model_setup.h"

#include "base/errors.h"
#include "plan/choices.h"

namespace braid {
namespace {

template <class T, class From>
void override_with(T& value, const std::optional<From>& given) {
  if (given) {
    value = static_cast<T>(*given);
  }
}

void require_given(std::string_view key, int64_t value) {
  if (value == 0) {
    throw_config_error("model.{} is not given; set it, or name a model.preset", key);
  }
}

void derive_sizes(ModelSpec& spec, int64_t sequence) {
  const bool gpt2 = spec.family == ModelFamily::kGpt2;
  if (spec.kv_heads == 0) {
    spec.kv_heads = spec.heads;
  }
  if (spec.head_size == 0) {
    if (spec.width % spec.heads != 0) {
      throw_config_error(
          "model.heads = {}: must divide model.width = {} unless model.head_size is given",
          spec.heads, spec.width);
    }
    spec.head_size = spec.width / spec.heads;
  }
  if (spec.ffn == 0) {
    spec.ffn = gpt2 ? 4 * spec.width : (8 * spec.width / 3 + 63) / 64 * 64;
  }
  if (gpt2 && spec.max_positions == 0) {
    spec.max_positions = sequence;
  }
}

}  // namespace

ModelSpec resolve_model(const ModelConfig& config, int64_t sequence, int64_t tokenizer_vocabulary) {
  ModelSpec spec;
  if (!config.preset.empty()) {
    spec = find_preset(config.preset).spec;
  }
  const ModelFamily family = config.family ? choice<ModelFamily>(*config.family) : spec.family;
  if (config.preset.empty()) {
    spec.qkv_bias = family == ModelFamily::kGpt2;
    spec.tied_embeddings = family == ModelFamily::kGpt2;
  }
  spec.family = family;
  override_with(spec.layers, config.layers);
  override_with(spec.width, config.width);
  override_with(spec.heads, config.heads);
  override_with(spec.kv_heads, config.kv_heads);
  override_with(spec.head_size, config.head_size);
  override_with(spec.ffn, config.ffn);
  override_with(spec.vocabulary, config.vocabulary);
  override_with(spec.max_positions, config.max_positions);
  override_with(spec.tied_embeddings, config.tied_embeddings);
  override_with(spec.qkv_bias, config.qkv_bias);
  override_with(spec.rope_theta, config.rope_theta);
  override_with(spec.norm_epsilon, config.norm_epsilon);
  override_with(spec.init_std, config.init_std);
  if (spec.vocabulary == 0) {
    spec.vocabulary = tokenizer_vocabulary;
  }
  require_given("layers", spec.layers);
  require_given("width", spec.width);
  require_given("heads", spec.heads);
  require_given("vocabulary", spec.vocabulary);
  derive_sizes(spec, sequence);
  if (spec.vocabulary < tokenizer_vocabulary) {
    throw_config_error(
        "model.vocabulary = {}: the tokenizer has {} ids; set at least {}, or 0 to take the "
        "tokenizer's number",
        spec.vocabulary, tokenizer_vocabulary, tokenizer_vocabulary);
  }
  check_model(spec);
  return spec;
}

std::vector<std::string> changed_keys_of_preset(const ModelConfig& config) {
  std::vector<std::string> keys;
  if (config.preset.empty()) {
    return keys;
  }
  const ModelSpec spec = find_preset(config.preset).spec;
  const auto compare = [&](const char* key, const auto& given, const auto& preset) {
    if (given && *given != preset) {
      keys.emplace_back(key);
    }
  };
  compare("layers", config.layers, spec.layers);
  compare("width", config.width, spec.width);
  compare("heads", config.heads, spec.heads);
  compare("kv_heads", config.kv_heads, spec.kv_heads);
  compare("head_size", config.head_size, spec.head_size);
  compare("ffn", config.ffn, spec.ffn);
  compare("vocabulary", config.vocabulary, spec.vocabulary);
  compare("tied_embeddings", config.tied_embeddings, spec.tied_embeddings);
  compare("qkv_bias", config.qkv_bias, spec.qkv_bias);
  return keys;
}

}  // namespace braid
