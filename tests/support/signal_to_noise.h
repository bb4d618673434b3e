#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace braid {

/// 10 log10 of the ratio of the squares of `exact` to those of its differences to `found`, which
/// has as many elements.
inline double snr_db(const std::vector<double>& exact, const std::vector<double>& found) {
  double signal = 0;
  double noise = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    signal += exact[i] * exact[i];
    noise += (exact[i] - found[i]) * (exact[i] - found[i]);
  }
  return 10 * std::log10(signal / noise);
}

}  // namespace braid
