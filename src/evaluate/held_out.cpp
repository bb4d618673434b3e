#include "evaluate/held_out.h"

#include <cmath>

#include "base/errors.h"
#include "evaluate/token_scores.h"

namespace braid {

double HeldOutScore::loss() const {
  return tokens == 0 ? 0 : nats / static_cast<double>(tokens);
}

double HeldOutScore::perplexity() const {
  return std::exp(loss());
}

void HeldOutScorer::add(std::span<const int32_t> tokens) {
  pending_.insert(pending_.end(), tokens.begin(), tokens.end());
  const auto window = static_cast<size_t>(model_.max_tokens());
  size_t begin = 0;
  for (; pending_.size() - begin > window; begin += window) {
    score_window(std::span(pending_).subspan(begin, window + 1));
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(begin));
}

HeldOutScore HeldOutScorer::finish() {
  if (pending_.size() > 1) {
    score_window(pending_);
  }
  if (score_.tokens == 0) {
    throw_data_error("the text has {} tokens: at least two are needed to predict one",
                     pending_.size());
  }
  pending_.clear();
  return score_;
}

void HeldOutScorer::score_window(std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size()) - 1;
  ++score_.windows;
  score_.tokens += count;
  if (model_.computes_loss() && count == model_.max_tokens()) {
    score_.nats += model_.loss(tokens) * static_cast<double>(count);
    return;
  }
  for (const TokenScore& token : score_tokens(model_, tokens, 1, workers_)) {
    score_.nats -= token.logprob;
  }
}

}  // namespace braid
