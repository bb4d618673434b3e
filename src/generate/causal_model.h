#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generate/loaded_programs.h"
#include "model/model_spec.h"
#include "state/state_source.h"

namespace braid {

/// A trained model that gives the logits of the next token at each position of a token sequence.
/// The forward program is planned for a few sequence lengths (powers of two, and the longest), and
/// a sequence runs in the shortest one that holds it. Not thread-safe.
class CausalModel {
 public:
  /// `max_tokens`: of a sequence, at least 1. Throws as LoadedPrograms.
  CausalModel(const ModelSpec& model, const StateSource& state, int64_t max_tokens,
              const CausalModelOptions& options);

  int64_t max_tokens() const { return lengths_.back(); }
  int64_t vocabulary() const { return model_.vocabulary; }

  /// Runs the forward over 1 to max_tokens() tokens of the vocabulary.
  void run(std::span<const int32_t> tokens);

  /// Logits [count, vocabulary] after the tokens [first, first + count) of the last `run`. Throws
  /// DataError naming token and logit if one is not finite.
  std::vector<float> logits(int64_t first, int64_t count);

  bool computes_loss() const { return computes_loss_; }
  /// Mean of -ln of the probability of each token after those before it, of max_tokens() + 1
  /// tokens: the loss of training, computed on the device. Requires `computes_loss`. Throws
  /// DataError if it is not finite.
  double loss(std::span<const int32_t> tokens);

 private:
  ModelSpec model_;
  std::vector<int64_t> lengths_;  // of the executor's programs, ascending
  bool computes_loss_;            // by one more program
  LoadedPrograms programs_;
  size_t last_program_ = 0;
  int64_t last_tokens_ = 0;
};

}  // namespace braid
