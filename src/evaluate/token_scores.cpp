#include "evaluate/token_scores.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace braid {
namespace {

/// Rows of logits that are in host memory at once.
constexpr int64_t kLogitsBytes = int64_t{64} << 20;

}  // namespace

TokenScore score_logits(std::span<const float> logits, int32_t token) {
  check(token >= 0 && static_cast<size_t>(token) < logits.size(), "token {} of {}", token,
        logits.size());
  const auto largest = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - *largest);
  }
  return {
      .logprob = static_cast<double>(logits[static_cast<size_t>(token)]) - *largest - std::log(sum),
      .is_greedy = largest - logits.begin() == token};
}

std::vector<TokenScore> score_tokens(CausalModel& model, std::span<const int32_t> tokens,
                                     size_t first, WorkerPool& workers) {
  check(first >= 1 && first < tokens.size(), "tokens [{}, {})", first, tokens.size());
  model.run(tokens.first(tokens.size() - 1));
  const auto vocabulary = static_cast<size_t>(model.vocabulary());
  const int64_t rows_at_once =
      std::max<int64_t>(1, kLogitsBytes / static_cast<int64_t>(vocabulary * sizeof(float)));
  std::vector<TokenScore> scores(tokens.size() - first);
  for (int64_t begin = 0; begin < std::ssize(scores); begin += rows_at_once) {
    const int64_t count = std::min(rows_at_once, std::ssize(scores) - begin);
    const auto row_begin = static_cast<int64_t>(first) - 1 + begin;  // the row before the token
    const std::vector<float> logits = model.logits(row_begin, count);
    workers.run(count, 1, [&](int, int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const auto row = std::span(logits).subspan(static_cast<size_t>(i) * vocabulary, vocabulary);
        const auto index = static_cast<size_t>(begin + i);
        scores[index] = score_logits(row, tokens[first + index]);
      }
    });
  }
  return scores;
}

}  // namespace braid
