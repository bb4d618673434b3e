#include "generate/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
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

/// Keeps the fewest of the first weights, in descending order, whose sum is at least that part of
/// all.
void keep_top_p(double top_p, std::vector<double>& weights) {
  if (top_p >= 1.0) {
    return;
  }
  double left = top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left <= 0) {
      weights.resize(i + 1);
      return;
    }
  }
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
  keep_top_p(options.top_p, weights);
  double remaining = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    remaining -= weights[i];
    if (remaining < 0) {
      return order[i];
    }
  }
  return order[weights.size() - 1];  // because of rounding
}

void penalize_repetition(std::span<const int32_t> context, double repetition_penalty,
                         std::span<float> logits) {
  const auto penalty = static_cast<float>(repetition_penalty);
  for (const int32_t token : std::set<int32_t>(context.begin(), context.end())) {
    float& logit = logits[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

namespace {

void check_prompt(const Prompt& prompt, int64_t vocabulary) {
  check(!prompt.tokens.empty(), "generation needs at least one token to start from");
  for (const int32_t token : prompt.tokens) {
    if (token < 0 || token >= vocabulary) {
      throw_config_error("prompt token {}: the model's vocabulary has {} ids", token, vocabulary);
    }
  }
}

std::vector<int32_t> last_of(const std::vector<int32_t>& tokens, int64_t count) {
  return {tokens.end() - std::min<int64_t>(std::ssize(tokens), count), tokens.end()};
}

/// Draws the next token of a text and adds it to both. Returns whether the text goes on.
bool extend(std::vector<int32_t>& text, std::vector<float> logits, uint64_t seed,
            const GenerationOptions& options, Continuation& continuation) {
  if (options.sampling.repetition_penalty != 1.0) {
    penalize_repetition(text, options.sampling.repetition_penalty, logits);
  }
  const int32_t token =
      sample_token(logits, options.sampling, uniform_at(seed, continuation.tokens.size()));
  if (std::ranges::find(options.ends, token) != options.ends.end()) {
    continuation.end = GenerationEnd::kEndId;
    return false;
  }
  text.push_back(token);
  continuation.tokens.push_back(token);
  return true;
}

}  // namespace

/// A prompt that one of the decoder's sequences continues.
struct Generator::Text {
  size_t prompt = 0;
  std::vector<int32_t> tokens;  // with the prompt
  bool is_new = true;           // the decoder has none of them
};

Generator::Generator(const ModelSpec& model, const StateSource& state, int64_t max_context,
                     const CausalModelOptions& options, int64_t num_sequences)
    : Generator(std::make_unique<Decoder>(model, state, max_context, num_sequences, options)) {}

std::vector<float> Generator::next_logits(std::span<const int32_t> context) {
  std::vector<std::vector<int32_t>> tokens(static_cast<size_t>(decoder_->num_sequences()));
  tokens[0] = last_of({context.begin(), context.end()}, decoder_->max_tokens());
  decoder_->clear(0);
  return decoder_->append(tokens)[0];
}

std::vector<int32_t> Generator::pending_tokens(int64_t sequence, const Text& text) {
  const int64_t context = decoder_->max_tokens();
  const bool is_full = decoder_->length(sequence) == context;
  if (!text.is_new && !is_full) {
    return {text.tokens.back()};
  }
  decoder_->clear(sequence);
  return last_of(text.tokens, text.is_new ? context : std::max<int64_t>(1, context / 2));
}

std::vector<Continuation> Generator::generate(std::span<const Prompt> prompts,
                                              const GenerationOptions& options,
                                              const OnToken& on_token, const OnEnd& on_end) {
  for (const Prompt& prompt : prompts) {
    check_prompt(prompt, decoder_->vocabulary());
  }
  std::vector<Continuation> found(prompts.size());
  std::vector<std::optional<Text>> texts(static_cast<size_t>(decoder_->num_sequences()));
  size_t next = options.max_tokens > 0 ? 0 : prompts.size();
  const auto is_running = [](const auto& text) { return text.has_value(); };
  while (next < prompts.size() || std::ranges::any_of(texts, is_running)) {
    std::vector<std::vector<int32_t>> tokens(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      if (!texts[i] && next < prompts.size()) {
        texts[i] = Text{.prompt = next, .tokens = prompts[next].tokens};
        ++next;
      }
      if (texts[i]) {
        tokens[i] = pending_tokens(static_cast<int64_t>(i), *texts[i]);
        texts[i]->is_new = false;
      }
    }
    std::vector<std::vector<float>> logits = decoder_->append(tokens);
    for (size_t i = 0; i < texts.size(); ++i) {
      if (!texts[i]) {
        continue;
      }
      const size_t prompt = texts[i]->prompt;
      Continuation& continuation = found[prompt];
      bool goes_on = extend(texts[i]->tokens, std::move(logits[i]), prompts[prompt].seed, options,
                            continuation);
      if (goes_on && !on_token(prompt, texts[i]->tokens.back())) {
        continuation.end = GenerationEnd::kStopped;
        goes_on = false;
      }
      if (!goes_on || std::ssize(continuation.tokens) == options.max_tokens) {
        texts[i].reset();
        if (on_end) {
          on_end(prompt, continuation);
        }
      }
    }
  }
  return found;
}

}  // namespace braid
