#pragma once

#include <cstdint>
#include <vector>

namespace braid {

/// Draws shares from a symmetric Dirichlet distribution, the same on every machine. The smaller the
/// concentration is, the fewer shares make up most of the whole.
class DirichletDraws {
 public:
  /// Of `size` shares. Requires: a positive concentration.
  DirichletDraws(int64_t size, double concentration) : size_(size), concentration_(concentration) {}

  /// The next draw; its largest share is 1, so the shares do not sum to 1.
  std::vector<double> next();

 private:
  double uniform();
  double normal();
  double log_gamma(double shape);

  int64_t size_;
  double concentration_;
  uint64_t count_ = 0;  // of the numbers drawn
};

}  // namespace braid
