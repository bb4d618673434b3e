#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "runtime/device.h"
#include "state/state_source.h"

namespace braid {

class Executor;

struct SamplingOptions {
  double temperature = 0.8;  ///< 0: always the most likely token
  int64_t top_k = 50;        ///< draws only from the k most likely tokens; 0: all
  uint64_t seed = 0;
};

/// Draws an index from softmax(logits / temperature) over the top k. `uniform` in [0, 1) determines
/// the draw. Ties and order are by index, so the result depends only on the arguments. A NaN counts
/// as the least likely. Requires a finite largest logit.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

struct GeneratorOptions {
  int threads = 1;                         ///< on the CPU
  Device device = {};                      ///< a GPU computes in bfloat16, the CPU in float32
  std::string cache_folder = {};           ///< as in EngineOptions
  std::optional<int64_t> free_bytes = {};  ///< of the memory in which it runs; none: not checked
};

/// Continues token sequences with a trained model. The forward program is planned for a few
/// sequence lengths (powers of two), and each new token runs the shortest one that holds the
/// context.
class Generator {
 public:
  /// `max_context`: maximum number of context tokens. Throws ConfigError before anything is
  /// allocated if the model does not fit into `free_bytes`, with the longest context (half of it, a
  /// quarter, ...) that fits.
  Generator(const ModelSpec& model, const StateSource& state, int64_t max_context,
            const GeneratorOptions& options);
  ~Generator();

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
  ModelSpec model_;
  std::vector<int64_t> lengths_;  // of the executor's programs, ascending
  DType logits_dtype_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace braid
