#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace braid {

/// "| what | number | mean | median | worst | mean with sign |" of relative errors; all but the
/// last are of absolute values. Empty without errors.
inline std::string error_summary_line(const std::string& what, std::vector<double> errors) {
  if (errors.empty()) {
    return {};
  }
  double sum = 0;
  double signed_sum = 0;
  for (double& error : errors) {
    signed_sum += error;
    error = std::abs(error);
    sum += error;
  }
  std::sort(errors.begin(), errors.end());
  const size_t n = errors.size();
  const double median = (errors[(n - 1) / 2] + errors[n / 2]) / 2;
  const auto count = static_cast<double>(n);
  return fmt::format("| {} | {} | {:.1f}% | {:.1f}% | {:.1f}% | {:+.1f}% |", what, n,
                     100 * sum / count, 100 * median, 100 * errors.back(),
                     100 * signed_sum / count);
}

}  // namespace braid
