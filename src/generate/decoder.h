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
/// depends on the number of rows that run together. Not thread-safe.
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
  void clear(int64_t sequence) { lengths_[static_cast<size_t>(sequence)] = 0; }

  /// Appends tokens of the vocabulary to the sequences, of which none may get longer than
  /// max_tokens(); `tokens` has one entry for each, which may be empty. Returns the logits
  /// [vocabulary] after the last token of each, empty for those without new tokens. Throws
  /// DataError naming token and logit if one is not finite.
  std::vector<std::vector<float>> append(std::span<const std::vector<int32_t>> tokens);

 private:
  /// Runs a program over the next tokens of each sequence and returns how many it took of each.
  std::vector<int32_t> run(size_t program, std::span<const std::span<const int32_t>> tokens);

  ModelSpec model_;
  int64_t max_tokens_;
  std::vector<int64_t> rows_;  // of a sequence in each of the executor's programs, ascending from 1
  std::vector<int64_t> lengths_;
  LoadedPrograms programs_;
};

}  // namespace braid
