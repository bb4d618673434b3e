#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/worker_pool.h"
#include "data/tokenizer.h"
#include "generate/causal_model.h"

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
  double logprob = 0;      ///< ln of the continuation's probability after the context
  bool is_greedy = false;  ///< every token of it is the likeliest one
  int64_t tokens = 0;      ///< of the continuation
};

/// Of a context that is too long, its last tokens count. Throws DataError if the continuation alone
/// has more than model.max_tokens() tokens.
ContinuationScore score_continuation(CausalModel& model, const ContinuationTokens& tokens,
                                     WorkerPool& workers);

}  // namespace braid
