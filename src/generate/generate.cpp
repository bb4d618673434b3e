#include "generate/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/errors.h"
#include "base/philox.h"

namespace braid {
namespace {

double uniform_at(uint64_t seed, uint64_t position) {
  const auto words =
      philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>(words[0]) * 0x1p-32;
}

}  // namespace

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit_of = [&](int32_t token) {
    const float logit = logits[static_cast<size_t>(token)];
    return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
  };
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logit_of(a);
    const float y = logit_of(b);
    return x > y || (x == y && a < b);
  };
  const size_t count = options.temperature == 0.0 ? 1
                       : options.top_k == 0
                           ? order.size()
                           : std::min(order.size(), static_cast<size_t>(options.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    likelier);
  if (count == 1) {
    return order.front();
  }
  const double highest = logit_of(order.front());
  std::vector<double> weights;
  for (size_t i = 0; i < count; ++i) {
    weights.push_back(std::exp((logit_of(order[i]) - highest) / options.temperature));
  }
  double remaining = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < count; ++i) {
    remaining -= weights[i];
    if (remaining < 0) {
      return order[i];
    }
  }
  return order[count - 1];  // because of rounding
}

Generator::Generator(const ModelSpec& model, const StateSource& state, int64_t max_context,
                     const CausalModelOptions& options)
    : Generator(std::make_unique<CausalModel>(model, state, max_context, options)) {}

std::vector<float> Generator::next_logits(std::span<const int32_t> context) {
  context = context.last(std::min(context.size(), static_cast<size_t>(model_->max_tokens())));
  model_->run(context);
  return model_->logits(static_cast<int64_t>(context.size()) - 1, 1);
}

std::vector<int32_t> Generator::generate(std::vector<int32_t> context, int64_t max_tokens,
                                         std::span<const int32_t> ends,
                                         const SamplingOptions& options,
                                         const std::function<void(int32_t)>& on_token) {
  check(!context.empty(), "generation needs at least one token to start from");
  for (const int32_t token : context) {
    if (token < 0 || token >= model_->vocabulary()) {
      throw_config_error("prompt token {}: the model's vocabulary has {} ids", token,
                         model_->vocabulary());
    }
  }
  for (int64_t i = 0; i < max_tokens; ++i) {
    const int32_t token = sample_token(next_logits(context), options,
                                       uniform_at(options.seed, static_cast<uint64_t>(i)));
    if (std::ranges::find(ends, token) != ends.end()) {
      break;
    }
    context.push_back(token);
    on_token(token);
  }
  return context;
}

}  // namespace braid
