#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "evaluate/sequence_scorer.h"

namespace braid {

/// A context and what follows it, as tokens.
struct ContinuationTokens {
  std::vector<int32_t> context;  ///< at least one
  std::vector<int32_t> continuation;
};

/// As lm-eval's _encode_pair (lm_eval/api/model.py): both texts are encoded together, and the
/// tokens after as many as the context alone has are the continuation; blanks at the end of the
/// context (those of ASCII) belong to the continuation. Before the context comes what the tokenizer
/// puts before every text; an empty one is the end of a document. Throws DataError if the context
/// is empty and the tokenizer has no such token, or if the continuation has no token.
ContinuationTokens encode_continuation(const Tokenizer& tokenizer, std::string_view context,
                                       std::string_view continuation);

struct ContinuationScore {
  double logprob = 0;             ///< ln of the continuation's probability after the context
  std::optional<bool> is_greedy;  ///< as SequenceScore
  int64_t tokens = 0;             ///< of the continuation
};

/// Throws DataError if the continuation alone has more than `max_tokens` tokens.
void check_continuation(const ContinuationTokens& tokens, int64_t max_tokens);

/// One score for each. Of a context that is too long, its last tokens count. Throws as
/// `check_continuation`, and SequenceScorer::score.
std::vector<ContinuationScore> score_continuations(SequenceScorer& scorer,
                                                   std::span<const ContinuationTokens> all);

}  // namespace braid
