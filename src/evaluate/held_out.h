#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/worker_pool.h"
#include "generate/causal_model.h"

namespace braid {

struct HeldOutScore {
  int64_t tokens = 0;   ///< predicted
  int64_t windows = 0;  ///< forwards
  double nats = 0;      ///< sum of -ln of their probabilities

  /// Nats per token, as the loss of training.
  double loss() const;
  double perplexity() const;
};

/// Scores a stream of tokens in windows of model.max_tokens(), one after the other, as training
/// reads it: window k has tokens [k T, (k + 1) T] and predicts all but its first one. So every
/// token but the first of the stream is predicted once, with at least one and at most T tokens
/// before it. The last window has what is left, at least one token to predict, and its exact size.
/// A model that computes the loss (CausalModelOptions) does so for full windows.
class HeldOutScorer {
 public:
  /// Both must outlive this object.
  HeldOutScorer(CausalModel& model, WorkerPool& workers) : model_(model), workers_(workers) {}

  /// The next tokens of the stream, all of the vocabulary.
  void add(std::span<const int32_t> tokens);
  /// The last window. Throws DataError if the stream has fewer than two tokens.
  HeldOutScore finish();

  const HeldOutScore& so_far() const { return score_; }

 private:
  void score_window(std::span<const int32_t> tokens);

  CausalModel& model_;
  WorkerPool& workers_;
  std::vector<int32_t> pending_;  // the last token that was predicted, and those after it
  HeldOutScore score_;
};

}  // namespace braid
