#include "model/parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/philox.h"
#include "model/blocks/registry.h"
#include "model/layer_parameters.h"
#include "model/mtp.h"
#include "model/parameter_list.h"

namespace braid {
namespace {

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

bool is_uniform(ParameterInit init) {
  return init == ParameterInit::kUniform || init == ParameterInit::kLogOfUniform ||
         init == ParameterInit::kSoftplusIsLogUniform;
}

/// The value that a uniform variate in (0, 1) becomes.
double spread(const Parameter& parameter, double variate) {
  const double low = parameter.init_low;
  const double high = parameter.init_high;
  switch (parameter.init) {
    case ParameterInit::kLogOfUniform:
      return std::log(low + (high - low) * variate);
    case ParameterInit::kSoftplusIsLogUniform: {
      const double softplus = low * std::pow(high / low, variate);
      return softplus + std::log(-std::expm1(-softplus));
    }
    default:
      return low + (high - low) * variate;
  }
}

uint64_t stream_of(const Parameter& parameter, uint64_t seed) {
  return seed ^ stable_hash(parameter.name.data(), parameter.name.size());
}

}  // namespace

std::vector<Parameter> model_parameters(const ModelSpec& spec) {
  return parameters_with_layers(spec, 0, spec.layers.size());
}

std::vector<Parameter> parameters_with_layers(const ModelSpec& spec, int64_t first_layer,
                                              int64_t num_layers) {
  ParameterList list(spec);
  list.enter("embedding", -1);
  list.embedding("tokens", spec.padded_vocabulary(), true);
  if (spec.style.positions == PositionKind::kLearned) {
    list.embedding("positions", spec.max_positions, false);
  }
  for (int64_t layer = first_layer; layer < first_layer + num_layers; ++layer) {
    list.enter(fmt::format("layers.{}", layer), static_cast<int32_t>(layer));
    spec.layers[layer].for_each_block(
        [&](const BlockDefinition& block) { add_block_parameters(list, spec, block); });
  }
  list.enter("head", -1);
  list.norm("norm");
  if (!spec.tied_embeddings) {
    list.embedding("output", spec.padded_vocabulary(), true);
  }
  add_mtp_parameters(list, spec);
  return list.take();
}

void initial_values(const Parameter& parameter, int64_t vocabulary, uint64_t seed, int64_t begin,
                    std::span<float> out) {
  const uint64_t key = stream_of(parameter, seed);
  if (is_uniform(parameter.init)) {
    for (size_t i = 0; i < out.size(); ++i) {
      const double variate = philox_uniform(key, static_cast<uint64_t>(begin) + i);
      out[i] = static_cast<float>(spread(parameter, variate));
    }
    return;
  }
  if (parameter.init != ParameterInit::kNormal) {
    std::fill(out.begin(), out.end(), parameter.init == ParameterInit::kOnes ? 1.0f : 0.0f);
    return;
  }
  const int64_t valid_elems =
      parameter.vocabulary_rows ? vocabulary * parameter.shape[1] : parameter.shape.num_elems();
  const auto num_drawn = static_cast<size_t>(
      std::clamp<int64_t>(valid_elems - begin, 0, static_cast<int64_t>(out.size())));
  fill_normal(key, parameter.init_std, static_cast<uint64_t>(begin), out.first(num_drawn));
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(num_drawn), out.end(), 0.0f);
}

}  // namespace braid
