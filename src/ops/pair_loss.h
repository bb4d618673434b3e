#pragma once

#include <cmath>

#include "base/host_device.h"
#include "ops/preference.h"

namespace braid {

/// A loss, and its gradient with respect to z.
struct PairLoss {
  double loss = 0;
  double slope = 0;
};

/// log(sigmoid(x)), without overflow.
BRAID_HOST_DEVICE inline double log_sigmoid(double x) {
  return x >= 0 ? -std::log1p(std::exp(-x)) : x - std::log1p(std::exp(x));
}

BRAID_HOST_DEVICE inline double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

/// The loss of a pair whose rewards differ by z, as in preference_loss.
BRAID_HOST_DEVICE inline PairLoss pair_loss(PreferenceKind kind, double z, double beta,
                                            double label_smoothing) {
  switch (kind) {
    case PreferenceKind::kHinge:
      return z < 1 ? PairLoss{1 - z, -1} : PairLoss{};
    case PreferenceKind::kIpo: {
      const double distance = z / beta - 1 / (2 * beta);
      return {distance * distance, 2 * distance / beta};
    }
    case PreferenceKind::kDpo:
      break;
  }
  return {-(1 - label_smoothing) * log_sigmoid(z) - label_smoothing * log_sigmoid(-z),
          label_smoothing - sigmoid(-z)};
}

/// What one pair has in the loss of a step, not yet divided by the number of pairs.
struct PairFigures {
  double loss = 0;
  double figures[kPreferenceFigures] = {};
  double d_chosen = 0;  ///< gradient with respect to the loss of the sequence
  double d_rejected = 0;
};

/// `losses` and `reference` are the two rows of the pair.
template <class W>
BRAID_HOST_DEVICE PairFigures pair_figures(PreferenceKind kind, double beta, double label_smoothing,
                                           const W* losses, const W* reference) {
  const double w_chosen = static_cast<double>(reference[1]);
  const double w_rejected = static_cast<double>(reference[kReferenceColumns + 1]);
  const double chosen = -static_cast<double>(losses[0]);
  const double rejected = -static_cast<double>(losses[1]);
  const double r_chosen = beta * w_chosen * (chosen - static_cast<double>(reference[0]));
  const double r_rejected =
      beta * w_rejected * (rejected - static_cast<double>(reference[kReferenceColumns]));
  const double z = r_chosen - r_rejected;
  const PairLoss loss = pair_loss(kind, z, beta, label_smoothing);
  return {.loss = loss.loss,
          .figures = {r_chosen, r_rejected, z > 0 ? 1.0 : 0.0, w_chosen * chosen,
                      w_rejected * rejected},
          .d_chosen = -loss.slope * beta * w_chosen,
          .d_rejected = loss.slope * beta * w_rejected};
}

}  // namespace braid
