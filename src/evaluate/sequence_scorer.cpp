#include "evaluate/sequence_scorer.h"

#include "evaluate/token_scores.h"

namespace braid {

std::vector<SequenceScore> DeviceScorer::score(std::span<const ScoredSequence> sequences) {
  std::vector<SequenceScore> scores;
  for (const ScoredSequence& sequence : sequences) {
    scores.push_back(score_one(sequence));
  }
  return scores;
}

SequenceScore DeviceScorer::score_one(const ScoredSequence& sequence) {
  const int64_t count = std::ssize(sequence.tokens) - 1;
  if (model_.computes_loss() && sequence.first == 1 && count == model_.max_tokens()) {
    return {.logprob = -model_.loss(sequence.tokens) * static_cast<double>(count), .is_greedy = {}};
  }
  SequenceScore result{.logprob = 0, .is_greedy = true};
  for (const TokenScore& token : score_tokens(model_, sequence.tokens, sequence.first, workers_)) {
    result.logprob += token.logprob;
    result.is_greedy = *result.is_greedy && token.is_greedy;
  }
  return result;
}

}  // namespace braid
