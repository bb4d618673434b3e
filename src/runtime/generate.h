#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "runtime/model_state.h"

namespace braid {

class Executor;

struct SamplingOptions {
  double temperature = 0.8;  ///< 0: always the likeliest token
  int64_t top_k = 50;        ///< only the k likeliest tokens are drawn from; 0: all
  uint64_t seed = 0;
};

/// The index drawn from softmax(logits / temperature) over the top k. `uniform` in [0, 1) decides
/// the draw. Ties and order are by index, so the result depends on the arguments only. A NaN is
/// the least likely. Requires a finite largest logit.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

/// Continues token sequences with a trained model on the CPU. The forward program is planned for a
/// few sequence lengths (powers of two), and each new token runs the shortest one that holds the
/// context.
class Generator {
 public:
  /// `max_context`: tokens that the model looks back at most.
  Generator(const ModelSpec& model, const ModelState& state, int64_t max_context, int threads);
  ~Generator();

  /// Appends up to `max_tokens` tokens to `context` (at least one token), stopping before `end` if
  /// it is drawn. `on_token` is called with each new token. Throws ConfigError if a context token
  /// is outside the vocabulary.
  std::vector<int32_t> generate(std::vector<int32_t> context, int64_t max_tokens,
                                std::optional<int32_t> end, const SamplingOptions& options,
                                const std::function<void(int32_t)>& on_token);

 private:
  std::vector<float> next_logits(std::span<const int32_t> context);

  ModelSpec model_;
  std::vector<int64_t> lengths_;  // of the executor's programs, ascending
  std::unique_ptr<Executor> executor_;
};

}  // namespace braid
