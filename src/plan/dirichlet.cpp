#include "plan/dirichlet.h"

#include <algorithm>
#include <cmath>

#include "base/philox.h"

namespace braid {

// Independent of the platform's library, like everything else that is random in braid.
double DirichletDraws::uniform() {  // in (0, 1)
  const auto number = static_cast<uint32_t>(count_++);
  const auto words = philox4x32({number, 0, 0, 0}, {0x0A11, 0x10AD});
  return (static_cast<double>(words[0]) + 0.5) * 0x1p-32;
}

double DirichletDraws::normal() {
  constexpr uint64_t kNormals = 0x10AD5;
  return philox_normal(kNormals, count_++);
}

/// The logarithm of a Gamma variate with this shape. Below 1, that of shape + 1 times a power of a
/// uniform variate, so small shapes do not become 0. Source: Marsaglia and Tsang, A simple method
/// for generating gamma variables, 2000.
double DirichletDraws::log_gamma(double shape) {
  if (shape < 1) {
    return log_gamma(shape + 1) + std::log(uniform()) / shape;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal();
    const double v = std::pow(1 + c * x, 3);
    if (1 + c * x > 0 && std::log(uniform()) < x * x / 2 + d - d * v + d * std::log(v)) {
      return std::log(d * v);
    }
  }
}

std::vector<double> DirichletDraws::next() {
  std::vector<double> shares(static_cast<size_t>(size_));
  std::ranges::generate(shares, [&] { return log_gamma(concentration_); });
  const double largest = *std::ranges::max_element(shares);
  for (double& share : shares) {
    share = std::exp(share - largest);
  }
  return shares;
}

}  // namespace braid
