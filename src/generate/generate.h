#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "generate/decoder.h"

namespace braid {

/// How a token is drawn, in this order: logits of tokens that the text has already are made
/// smaller, temperature, top k, top p.
struct SamplingOptions {
  double temperature = 0.8;  ///< 0: always the most likely token
  int64_t top_k = 50;        ///< draws only from the k most likely tokens; 0: all
  double top_p = 1.0;        ///< of these, from the fewest whose probabilities sum to p; 1: all
  /// Positive logits of tokens in the text are divided by it and negative ones multiplied; 1: none.
  /// Source: Keskar et al., CTRL, 2019, section 4.1.
  double repetition_penalty = 1.0;
};

/// Draws an index from softmax(logits / temperature) over the top k and top p. `uniform` in [0, 1)
/// determines the draw. Ties and order are by index, so the result depends only on the arguments. A
/// NaN counts as the least likely. Requires a finite largest logit.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, double uniform);

/// Applies `repetition_penalty` to the logits of each token of `context` once.
void penalize_repetition(std::span<const int32_t> context, double repetition_penalty,
                         std::span<float> logits);

struct Prompt {
  std::vector<int32_t> tokens;  ///< at least one
  uint64_t seed = 0;
};

enum class GenerationEnd : uint8_t {
  kLength,   ///< max_tokens
  kEndId,    ///< an id of `ends` was drawn
  kStopped,  ///< on_token returned false
};

struct Continuation {
  std::vector<int32_t> tokens;  ///< without an end id
  GenerationEnd end = GenerationEnd::kLength;
};

struct GenerationOptions {
  int64_t max_tokens = 128;   ///< new ones of each prompt
  std::vector<int32_t> ends;  ///< ids that end a text
  SamplingOptions sampling;
};

using OnToken = std::function<bool(size_t, int32_t)>;
using OnEnd = std::function<void(size_t, const Continuation&)>;

/// Continues token sequences with a trained model, as many at once as its decoder has sequences.
/// Each draw depends on the logits, the prompt's seed and the number of tokens before it only, so
/// that a prompt has the same continuation next to any others, unless rounding (Decoder) decides
/// between two tokens. A text that has filled the context goes on with the last half of it, which
/// is read again.
class Generator {
 public:
  /// `max_context`: maximum number of context tokens. Throws as LoadedPrograms.
  Generator(const ModelSpec& model, const StateSource& state, int64_t max_context,
            const CausalModelOptions& options, int64_t num_sequences = 1);
  explicit Generator(std::unique_ptr<Decoder> decoder) : decoder_(std::move(decoder)) {}

  /// `on_token(prompt, token)` is called with each new token; if it returns false, the prompt ends
  /// with this token. `on_end`, if given, is called when a prompt has ended. Throws ConfigError if
  /// a prompt's token is outside the vocabulary.
  std::vector<Continuation> generate(std::span<const Prompt> prompts,
                                     const GenerationOptions& options, const OnToken& on_token,
                                     const OnEnd& on_end = {});

  /// Logits [vocabulary] of the token after `context`, using its last `max_context` tokens.
  /// Requires at least one token, all inside the vocabulary.
  std::vector<float> next_logits(std::span<const int32_t> context);

 private:
  struct Text;

  /// The tokens that the text's sequence of the decoder has not seen.
  std::vector<int32_t> pending_tokens(int64_t sequence, const Text& text);

  std::unique_ptr<Decoder> decoder_;
};

}  // namespace braid
