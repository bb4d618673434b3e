#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace braid {

inline double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}

/// The scores of a token's experts as ops/router.h defines them, in double.
inline std::vector<double> scores_of(const std::vector<double>& logits, bool of_sigmoid) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (const double logit : logits) {
    total += std::exp(logit - largest);
  }
  std::vector<double> scores;
  for (const double logit : logits) {
    scores.push_back(of_sigmoid ? sigmoid_of(logit) : std::exp(logit - largest) / total);
  }
  return scores;
}

}  // namespace braid
