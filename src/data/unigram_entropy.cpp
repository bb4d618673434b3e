#include "data/unigram_entropy.h"

#include <algorithm>
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

  /// Adds `share` times the frequency of each token to that of a mixture, by token.
  void add_to(std::vector<double>& flat, std::map<int32_t, double>& wild, double share) const {
    const double scale = static_cast<double>(num_tokens_);
    flat.resize(std::max(flat.size(), flat_.size()));
    for (size_t token = 0; token < flat_.size(); ++token) {
      flat[token] += share * (static_cast<double>(flat_[token]) / scale);
    }
    for (const auto& [token, count] : wild_) {
      wild[token] += share * (static_cast<double>(count) / scale);
    }
  }

 private:
  static constexpr int32_t kFlatTokens = 1 << 20;

  std::vector<int64_t> flat_;
  std::map<int32_t, int64_t> wild_;
  int64_t num_tokens_ = 0;
};

/// Token frequencies of a mixture, which sum up to 1.
class Frequencies {
 public:
  void add(const TokenCounts& counts, double share) { counts.add_to(flat_, wild_, share); }

  double entropy() const {
    double sum = 0;
    for (const double frequency : flat_) {
      sum += term(frequency);
    }
    for (const auto& [token, frequency] : wild_) {
      sum += term(frequency);
    }
    return sum;
  }

 private:
  static double term(double frequency) {
    return frequency == 0 ? 0 : -frequency * std::log(frequency);
  }

  std::vector<double> flat_;
  std::map<int32_t, double> wild_;
};

TokenCounts counts_of(const IndexedDataset& dataset, SequenceRange range) {
  TokenCounts counts;
  std::vector<int32_t> tokens;
  for (int64_t i = range.begin; i < range.end; ++i) {
    tokens.resize(static_cast<size_t>(dataset.index().length(i)));
    dataset.read(i, 0, tokens);
    counts.add(tokens);
  }
  return counts;
}

}  // namespace

double unigram_entropy(std::span<const int32_t> tokens) {
  TokenCounts counts;
  counts.add(tokens);
  Frequencies frequencies;
  frequencies.add(counts, 1);
  return frequencies.entropy();
}

double unigram_entropy(std::span<const MixturePart> parts) {
  Frequencies frequencies;
  for (const MixturePart& part : parts) {
    frequencies.add(counts_of(part.dataset, part.range), part.share);
  }
  return frequencies.entropy();
}

}  // namespace braid
