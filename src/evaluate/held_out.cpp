#include "evaluate/held_out.h"

#include <cmath>
#include <utility>

#include "base/errors.h"

namespace braid {

double HeldOutScore::loss() const {
  return tokens == 0 ? 0 : nats / static_cast<double>(tokens);
}

double HeldOutScore::perplexity() const {
  return std::exp(loss());
}

void HeldOutScorer::add(std::span<const int32_t> tokens) {
  pending_.insert(pending_.end(), tokens.begin(), tokens.end());
  const int64_t window = scorer_.max_tokens();
  int64_t begin = 0;
  for (; std::ssize(pending_) - begin > window; begin += window) {
    const auto first = pending_.begin() + begin;
    add_window({first, first + window + 1});
  }
  pending_.erase(pending_.begin(), pending_.begin() + begin);
}

HeldOutScore HeldOutScorer::finish() {
  if (pending_.size() > 1) {
    add_window(pending_);
  }
  score_windows();
  if (score_.tokens == 0) {
    throw_data_error("the text has {} tokens: at least two are needed to predict one",
                     pending_.size());
  }
  pending_.clear();
  return score_;
}

void HeldOutScorer::add_window(std::vector<int32_t> tokens) {
  windows_.push_back(std::move(tokens));
  if (std::ssize(windows_) >= scorer_.sequences_at_once()) {
    score_windows();
  }
}

void HeldOutScorer::score_windows() {
  std::vector<ScoredSequence> sequences;
  for (const std::vector<int32_t>& window : windows_) {
    sequences.push_back({.tokens = window, .first = 1});
    score_.tokens += std::ssize(window) - 1;
  }
  score_.windows += std::ssize(windows_);
  for (const SequenceScore& score : scorer_.score(sequences)) {
    score_.nats -= score.logprob;
  }
  windows_.clear();
}

}  // namespace braid
