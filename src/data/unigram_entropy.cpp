#include "data/unigram_entropy.h"

#include <cmath>
#include <map>
#include <vector>

#include "base/errors.h"

namespace braid {
namespace {

/// Counts in a flat table for ids of realistic vocabularies, and in a map for larger ones, so that
/// one stray id in a file of 32-bit tokens does not take gigabytes.
class TokenCounts {
 public:
  void add(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
      check(token >= 0, "token {} is negative", token);
      if (token < kFlatTokens) [[likely]] {
        if (static_cast<size_t>(token) >= flat_.size()) {
          flat_.resize(static_cast<size_t>(token) + 1);
        }
        ++flat_[static_cast<size_t>(token)];
      } else {
        ++wild_[token];
      }
    }
    num_tokens_ += static_cast<int64_t>(tokens.size());
  }

  double entropy() const {
    double sum = 0;
    for (const int64_t count : flat_) {
      sum += term(count);
    }
    for (const auto& [token, count] : wild_) {
      sum += term(count);
    }
    return sum;
  }

 private:
  static constexpr int32_t kFlatTokens = 1 << 20;

  double term(int64_t count) const {
    if (count == 0) {
      return 0;
    }
    const double p = static_cast<double>(count) / static_cast<double>(num_tokens_);
    return -p * std::log(p);
  }

  std::vector<int64_t> flat_;
  std::map<int32_t, int64_t> wild_;
  int64_t num_tokens_ = 0;
};

}  // namespace

double unigram_entropy(std::span<const int32_t> tokens) {
  TokenCounts counts;
  counts.add(tokens);
  return counts.entropy();
}

double unigram_entropy(const IndexedDataset& dataset, SequenceRange range) {
  TokenCounts counts;
  std::vector<int32_t> tokens;
  for (int64_t i = range.begin; i < range.end; ++i) {
    tokens.resize(static_cast<size_t>(dataset.index().length(i)));
    dataset.read(i, 0, tokens);
    counts.add(tokens);
  }
  return counts.entropy();
}

}  // namespace braid
