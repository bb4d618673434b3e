#include "evaluate/continuation.h"

#include <algorithm>

#include "base/errors.h"
#include "evaluate/token_scores.h"

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

ContinuationScore score_continuation(CausalModel& model, const ContinuationTokens& tokens,
                                     WorkerPool& workers) {
  const size_t count = tokens.continuation.size();
  const auto most = static_cast<size_t>(model.max_tokens());
  if (count > most) {
    throw_data_error(
        "a continuation of {} tokens: --context {} holds at most {}; give --context {}", count,
        most, most, count);
  }
  std::vector<int32_t> all = tokens.context;
  all.insert(all.end(), tokens.continuation.begin(), tokens.continuation.end());
  const std::span<const int32_t> kept = std::span(all).last(std::min(all.size(), most + 1));
  ContinuationScore result{.is_greedy = true, .tokens = static_cast<int64_t>(count)};
  for (const TokenScore& token : score_tokens(model, kept, kept.size() - count, workers)) {
    result.logprob += token.logprob;
    result.is_greedy = result.is_greedy && token.is_greedy;
  }
  return result;
}

}  // namespace braid
