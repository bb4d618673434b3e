#include "model/parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/philox.h"

namespace braid {
namespace {

class ParameterList {
 public:
  explicit ParameterList(const ModelSpec& spec) : spec_(spec) {}

  void enter(std::string unit, int32_t layer) {
    unit_ = std::move(unit);
    layer_ = layer;
  }

  void matrix(std::string_view name, int64_t out, int64_t in, double std_scale = 1.0) {
    add({.name = scoped(name), .shape = {out, in}, .init_std = spec_.init_std * std_scale});
  }

  void embedding(std::string_view name, int64_t rows, bool vocabulary_rows) {
    add({.name = scoped(name),
         .shape = {rows, spec_.width},
         .init_std = spec_.init_std,
         .vocabulary_rows = vocabulary_rows});
  }

  void vector(std::string_view name, int64_t size, ParameterInit init) {
    add({.name = scoped(name), .shape = {size}, .init = init, .weight_decay = false});
  }

  /// Weight 1, and bias 0 where the family has one.
  void norm(std::string_view name) {
    vector(fmt::format("{}.weight", name), spec_.width, ParameterInit::kOnes);
    if (spec_.family == ModelFamily::kGpt2) {
      vector(fmt::format("{}.bias", name), spec_.width, ParameterInit::kZeros);
    }
  }

  void linear(std::string_view name, int64_t out, int64_t in, bool bias, double std_scale = 1.0) {
    matrix(fmt::format("{}.weight", name), out, in, std_scale);
    if (bias) {
      vector(fmt::format("{}.bias", name), out, ParameterInit::kZeros);
    }
  }

  std::vector<Parameter> take() { return std::move(list_); }

 private:
  std::string scoped(std::string_view name) const { return fmt::format("{}.{}", unit_, name); }

  void add(Parameter parameter) {
    parameter.layer = layer_;
    parameter.unit = unit_;
    list_.push_back(std::move(parameter));
  }

  const ModelSpec& spec_;
  std::string unit_;
  int32_t layer_ = -1;
  std::vector<Parameter> list_;
};

void add_layer(ParameterList& list, const ModelSpec& spec) {
  const bool gpt2 = spec.family == ModelFamily::kGpt2;
  const double residual_scale = 1.0 / std::sqrt(2.0 * static_cast<double>(spec.layers));
  list.norm("attention_norm");
  list.linear("attention.qkv", qkv_width(spec), spec.width, spec.qkv_bias);
  list.linear("attention.proj", spec.width, spec.heads * spec.head_size, gpt2, residual_scale);
  list.norm("mlp_norm");
  list.linear("mlp.fc1", gpt2 ? spec.ffn : 2 * spec.ffn, spec.width,
              gpt2);  // Llama: gate rows, then up rows
  list.linear("mlp.fc2", spec.width, spec.ffn, gpt2, residual_scale);
}

}  // namespace

std::vector<Parameter> model_parameters(const ModelSpec& spec) {
  ParameterList list(spec);
  list.enter("embedding", -1);
  list.embedding("tokens", spec.padded_vocabulary(), true);
  if (spec.family == ModelFamily::kGpt2) {
    list.embedding("positions", spec.max_positions, false);
  }
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    list.enter(fmt::format("layers.{}", layer), static_cast<int32_t>(layer));
    add_layer(list, spec);
  }
  list.enter("head", -1);
  list.norm("norm");
  if (!spec.tied_embeddings) {
    list.embedding("output", spec.padded_vocabulary(), true);
  }
  return list.take();
}

void initial_values(const Parameter& parameter, int64_t vocabulary, uint64_t seed, int64_t begin,
                    std::span<float> out) {
  if (parameter.init != ParameterInit::kNormal) {
    std::fill(out.begin(), out.end(), parameter.init == ParameterInit::kOnes ? 1.0f : 0.0f);
    return;
  }
  const int64_t valid_elems =
      parameter.vocabulary_rows ? vocabulary * parameter.shape[1] : parameter.shape.num_elems();
  const uint64_t key = seed ^ stable_hash(parameter.name.data(), parameter.name.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t index = begin + static_cast<int64_t>(i);
    out[i] = index < valid_elems
                 ? static_cast<float>(parameter.init_std *
                                      philox_normal(key, static_cast<uint64_t>(index)))
                 : 0.0f;
  }
}

}  // namespace braid
