#pragma once

#include <cmath>
#include <deque>

namespace braid {

/// How far a step is above the mean of the steps before, in standard deviations of these.
struct SpikeScore {
  double loss = 0;
  double grad_norm = 0;

  bool is_finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }
  /// More than four deviations.
  bool is_spike() const;
};

/// Recognizes steps whose loss or gradient norm is far above those of the steps before: a sign that
/// a device has computed something wrong, or of a run that diverges.
class SpikeDetector {
 public:
  /// Adds the next step and compares it with the last 32 steps before. A value that is NaN or
  /// infinite scores infinity. The deviation counts as at least 2% of the mean, and with fewer than
  /// 16 steps before, every finite value scores 0.
  SpikeScore add(double loss, double grad_norm);

 private:
  class Recent {
   public:
    double add(double value);

   private:
    double score_of(double value) const;

    std::deque<double> values_;
  };

  Recent losses_;
  Recent grad_norms_;
};

}  // namespace braid
