#include "data/document_starts.h"

namespace braid {

std::vector<int32_t> document_starts(std::span<const int32_t> tokens, int64_t sequence_tokens,
                                     int32_t eod) {
  std::vector<int32_t> starts;
  starts.reserve(tokens.size());
  int32_t start = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto position = static_cast<int32_t>(static_cast<int64_t>(i) % sequence_tokens);
    if (position == 0 || tokens[i - 1] == eod) {
      start = position;
    }
    starts.push_back(start);
  }
  return starts;
}

}  // namespace braid
