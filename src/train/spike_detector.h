#pragma once

#include <deque>

namespace braid {

/// Recognizes steps whose loss or gradient norm is far above those of the steps before: a sign that
/// a device has computed something wrong, or of a run that diverges.
class SpikeDetector {
 public:
  /// Adds the next step. True if a value is NaN or infinite, or more than four standard deviations
  /// above the mean of the last 32 steps; the deviation counts as at least 2% of the mean, and
  /// nothing is compared with fewer than 16 steps.
  bool add(double loss, double grad_norm);

 private:
  class Recent {
   public:
    bool add(double value);

   private:
    double limit() const;

    std::deque<double> values_;
  };

  Recent losses_;
  Recent grad_norms_;
};

}  // namespace braid
