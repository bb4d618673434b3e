#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "evaluate/sequence_scorer.h"

namespace braid {

struct HeldOutScore {
  int64_t tokens = 0;   ///< predicted
  int64_t windows = 0;  ///< forwards
  double nats = 0;      ///< sum of -ln of their probabilities

  /// Nats per token, as the loss of training.
  double loss() const;
  double perplexity() const;
};

/// Scores a stream of tokens in windows of scorer.max_tokens(), one after the other, as training
/// reads it: window k has tokens [k T, (k + 1) T] and predicts all but its first one. So every
/// token but the first of the stream is predicted once, with at least one and at most T tokens
/// before it. The last window has what is left, at least one token to predict, and its exact size.
class HeldOutScorer {
 public:
  /// `scorer` must outlive this object.
  explicit HeldOutScorer(SequenceScorer& scorer) : scorer_(scorer) {}

  /// The next tokens of the stream, all of the vocabulary.
  void add(std::span<const int32_t> tokens);
  /// The last window. Throws DataError if the stream has fewer than two tokens.
  HeldOutScore finish();

  /// Of the windows that have been scored.
  const HeldOutScore& so_far() const { return score_; }

 private:
  void add_window(std::vector<int32_t> tokens);
  void score_windows();

  SequenceScorer& scorer_;
  std::vector<int32_t> pending_;  // the last token that was predicted, and those after it
  std::vector<std::vector<int32_t>> windows_;  // that wait for others, to be scored at once
  HeldOutScore score_;
};

}  // namespace braid
