#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "generate/causal_model.h"

namespace braid {

struct SamplingOptions {
  double temperature = 0.8;  ///< 0: always the most likely token
  int64_t top_k = 50;        ///< draws only from the k most likely tokens; 0: all
  uint64_t seed = 0;
};

/// Draws an index from softmax(logits / temperature) over the top k. `uniform` in [0, 1) determines
/// the draw. Ties and order are by index, so the result depends only on the arguments. A NaN counts
/// as the least likely. Requires a finite largest logit.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

/// Continues token sequences with a trained model: each new token is a run of the context.
class Generator {
 public:
  /// `max_context`: maximum number of context tokens. Throws as CausalModel.
  Generator(const ModelSpec& model, const StateSource& state, int64_t max_context,
            const CausalModelOptions& options);
  explicit Generator(std::unique_ptr<CausalModel> model) : model_(std::move(model)) {}

  /// Appends up to `max_tokens` tokens to `context` (at least one token), stopping before any of
  /// `ends` that is drawn. `on_token` is called with each new token. Throws ConfigError if a
  /// context token is outside the vocabulary.
  std::vector<int32_t> generate(std::vector<int32_t> context, int64_t max_tokens,
                                std::span<const int32_t> ends, const SamplingOptions& options,
                                const std::function<void(int32_t)>& on_token);

  /// Logits [vocabulary] of the token after `context`, using its last `max_context` tokens.
  /// Requires at least one token, all inside the vocabulary.
  std::vector<float> next_logits(std::span<const int32_t> context);

 private:
  std::unique_ptr<CausalModel> model_;
};

}  // namespace braid
