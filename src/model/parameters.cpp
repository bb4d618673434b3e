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

  void embedding(std::string_view name, int64_t rows, bool vocabulary_rows) {
    add({.name = scoped(name),
         .shape = {rows, spec_.width},
         .init_std = spec_.init_std,
         .vocabulary_rows = vocabulary_rows,
         .split = vocabulary_rows ? TensorSplit::kVocabulary : TensorSplit::kWhole});
  }

  void vector(std::string_view name, int64_t size, ParameterInit init, TensorSplit split) {
    add({.name = scoped(name),
         .shape = {size},
         .init = init,
         .weight_decay = false,
         .split = split});
  }

  /// Weight 1, and bias 0 where the family has one.
  void norm(std::string_view name) {
    vector(fmt::format("{}.weight", name), spec_.width, ParameterInit::kOnes, TensorSplit::kNorm);
    if (spec_.family == ModelFamily::kGpt2) {
      vector(fmt::format("{}.bias", name), spec_.width, ParameterInit::kZeros, TensorSplit::kNorm);
    }
  }

  struct Linear {
    int64_t out = 0;
    int64_t in = 0;
    bool bias = false;
    TensorSplit split = TensorSplit::kRows;
    double std_scale = 1.0;
    bool gate_up_rows = false;
  };

  void linear(std::string_view name, const Linear& facts) {
    add({.name = scoped(fmt::format("{}.weight", name)),
         .shape = {facts.out, facts.in},
         .init_std = spec_.init_std * facts.std_scale,
         .gate_up_rows = facts.gate_up_rows,
         .split = facts.split});
    if (facts.bias) {
      const bool columns = facts.split == TensorSplit::kColumns;
      vector(fmt::format("{}.bias", name), facts.out, ParameterInit::kZeros,
             columns ? TensorSplit::kWhole : facts.split);
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
  const int64_t heads_width = spec.heads * spec.head_size;
  list.norm("attention_norm");
  list.linear("attention.qkv", {.out = qkv_width(spec),
                                .in = spec.width,
                                .bias = spec.qkv_bias,
                                .split = TensorSplit::kHeads});
  list.linear("attention.proj", {.out = spec.width,
                                 .in = heads_width,
                                 .bias = gpt2,
                                 .split = TensorSplit::kColumns,
                                 .std_scale = residual_scale});
  list.norm("mlp_norm");
  list.linear("mlp.fc1", {.out = gpt2 ? spec.ffn : 2 * spec.ffn,
                          .in = spec.width,
                          .bias = gpt2,
                          .gate_up_rows = !gpt2});
  list.linear("mlp.fc2", {.out = spec.width,
                          .in = spec.ffn,
                          .bias = gpt2,
                          .split = TensorSplit::kColumns,
                          .std_scale = residual_scale});
}

/// std * variates [first, first + out.size()) of the stream.
void fill_normal(uint64_t key, double std, uint64_t first, std::span<float> out) {
  size_t i = 0;
  if (first % 2 == 1 && !out.empty()) {
    out[i++] = static_cast<float>(std * philox_normal(key, first));
  }
  for (; i + 1 < out.size(); i += 2) {
    const auto [even, odd] = philox_normal_pair(key, (first + i) / 2);
    out[i] = static_cast<float>(std * even);
    out[i + 1] = static_cast<float>(std * odd);
  }
  if (i < out.size()) {
    out[i] = static_cast<float>(std * philox_normal(key, first + i));
  }
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
  const auto num_drawn = static_cast<size_t>(
      std::clamp<int64_t>(valid_elems - begin, 0, static_cast<int64_t>(out.size())));
  const uint64_t key = seed ^ stable_hash(parameter.name.data(), parameter.name.size());
  fill_normal(key, parameter.init_std, static_cast<uint64_t>(begin), out.first(num_drawn));
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(num_drawn), out.end(), 0.0f);
}

}  // namespace braid
