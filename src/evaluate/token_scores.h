#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/worker_pool.h"
#include "generate/causal_model.h"

namespace braid {

/// What a model says of a token after those before it.
struct TokenScore {
  double logprob = 0;      ///< ln of its probability
  bool is_greedy = false;  ///< no other token is likelier; of equally likely ones, it has the
                           ///< lowest id
};

/// Scores of one row of logits [vocabulary]. Sums in f64.
TokenScore score_logits(std::span<const float> logits, int32_t token);

/// Scores tokens[first], tokens[first + 1], ..., each after all tokens before it; 1 <= first. One
/// forward: `tokens` are at most model.max_tokens() + 1. Throws as CausalModel::logits.
std::vector<TokenScore> score_tokens(CausalModel& model, std::span<const int32_t> tokens,
                                     size_t first, WorkerPool& workers);

}  // namespace braid
