#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "generate/loaded_programs.h"
#include "model/model_spec.h"
#include "state/state_source.h"

namespace braid {

/// A trained model that continues several token sequences at once. What later tokens need of
/// earlier ones stays in caches on the device (ops/token_cache.h), so a new token costs the forward
/// of one row per sequence. Programs are planned for one row per sequence and for a few larger
/// numbers, in which prompts are read. The logits are those of CausalModel up to rounding, which
/// depends on the number of rows that run together. Where longer sequences have other rotary
/// frequencies (ops/rope_scaling.h), a sequence that becomes one is read again. Not thread-safe.
class Decoder {
 public:
  /// `max_tokens` of each of `num_sequences` sequences, both at least 1. Throws as LoadedPrograms.
  Decoder(const ModelSpec& model, const StateSource& state, int64_t max_tokens,
          int64_t num_sequences, const CausalModelOptions& options);

  int64_t max_tokens() const { return max_tokens_; }
  int64_t vocabulary() const { return model_.vocabulary; }
  int64_t num_sequences() const { return static_cast<int64_t>(lengths_.size()); }
  /// Tokens of a sequence so far.
  int64_t length(int64_t sequence) const { return lengths_[static_cast<size_t>(sequence)]; }

  /// The sequence starts again without tokens.
  void clear(int64_t sequence) {
    lengths_[static_cast<size_t>(sequence)] = 0;
    history_[static_cast<size_t>(sequence)].clear();
  }

  /// Appends tokens of the vocabulary to the sequences, of which none may get longer than
  /// max_tokens(); `tokens` has one entry for each, which may be empty. Returns the logits
  /// [vocabulary] after the last token of each, empty for those without new tokens. Throws
  /// DataError naming token and logit if one is not finite.
  std::vector<std::vector<float>> append(std::span<const std::vector<int32_t>> tokens);

 private:
  using Tokens = std::vector<std::span<const int32_t>>;  // of each sequence

  /// Runs all `left` tokens of the sequences that have the frequencies of these models_, and stores
  /// the logits after them.
  void advance(size_t model, Tokens left, std::vector<std::vector<float>>& logits);
  /// Runs a program over the next tokens of each sequence and returns how many it took of each.
  std::vector<int32_t> run(size_t program, const Tokens& tokens);
  size_t program_for(size_t model, int64_t rows) const;
  std::string prefix_of(size_t program) const;
  /// The models_ of a sequence of so many tokens.
  size_t model_of(int64_t tokens) const;

  ModelSpec model_;
  std::vector<ModelSpec> models_;  // one; or two, with the frequencies of short and long sequences
  int64_t max_tokens_;
  std::vector<int64_t> rows_;  // of a sequence in a model's programs, ascending from 1
  std::vector<int64_t> lengths_;
  std::vector<std::vector<int32_t>> history_;  // the tokens so far, with two models
  LoadedPrograms programs_;
};

}  // namespace braid
