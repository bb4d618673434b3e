#include "evaluate/continuation.h"

#include <algorithm>

#include "base/errors.h"

namespace braid {
namespace {

std::vector<int32_t> start_of_text(const Tokenizer& tokenizer, bool is_empty) {
  std::vector<int32_t> tokens = tokenizer.frame().before;
  if (tokens.empty() && is_empty) {
    if (!tokenizer.eod_id()) {
      throw_data_error(
          "an empty context: the tokenizer '{}' has no end-of-document id to start from",
          tokenizer.name());
    }
    tokens.push_back(*tokenizer.eod_id());
  }
  return tokens;
}

}  // namespace

ContinuationTokens encode_continuation(const Tokenizer& tokenizer, std::string_view context,
                                       std::string_view continuation) {
  const std::string_view trimmed =
      context.substr(0, context.find_last_not_of(" \t\n\v\f\r") + 1);  // npos + 1 is 0
  const std::string whole = std::string(context) + std::string(continuation);
  const std::vector<int32_t> tokens = tokenizer.encode(whole);
  const size_t num_context =
      trimmed.empty() ? 0 : std::min(tokenizer.encode(trimmed).size(), tokens.size());
  if (num_context == tokens.size()) {
    throw_data_error("the continuation has no token of its own after the context");
  }
  const auto split = tokens.begin() + static_cast<std::ptrdiff_t>(num_context);
  ContinuationTokens result{.context = start_of_text(tokenizer, num_context == 0),
                            .continuation = {split, tokens.end()}};
  result.context.insert(result.context.end(), tokens.begin(), split);
  return result;
}

void check_continuation(const ContinuationTokens& tokens, int64_t max_tokens) {
  if (const int64_t count = std::ssize(tokens.continuation); count > max_tokens) {
    throw_data_error(
        "a continuation of {} tokens: --context {} holds at most {}; give --context {}", count,
        max_tokens, max_tokens, count);
  }
}

std::vector<ContinuationScore> score_continuations(SequenceScorer& scorer,
                                                   std::span<const ContinuationTokens> all) {
  const auto most = static_cast<size_t>(scorer.max_tokens());
  std::vector<std::vector<int32_t>> joined;
  for (const ContinuationTokens& tokens : all) {
    check_continuation(tokens, scorer.max_tokens());
    std::vector<int32_t>& both = joined.emplace_back(tokens.context);
    both.insert(both.end(), tokens.continuation.begin(), tokens.continuation.end());
  }
  std::vector<ScoredSequence> sequences;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::span<const int32_t> both(joined[i]);
    const auto kept = both.last(std::min(both.size(), most + 1));
    sequences.push_back({.tokens = kept, .first = kept.size() - all[i].continuation.size()});
  }
  const std::vector<SequenceScore> scores = scorer.score(sequences);
  std::vector<ContinuationScore> results;
  for (size_t i = 0; i < all.size(); ++i) {
    results.push_back({.logprob = scores[i].logprob,
                       .is_greedy = scores[i].is_greedy,
                       .tokens = std::ssize(all[i].continuation)});
  }
  return results;
}

}  // namespace braid
