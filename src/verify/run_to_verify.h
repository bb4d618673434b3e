#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "plan/run_spec.h"
#include "verify/verify_layout.h"

namespace braid {

/// The run that shows whether the layout of `config` computes what one rank does: `shrunken`.
/// `config` must be validated and resolved. Throws ConfigError for layouts that cannot run, also
/// where only the model of `config` is in their way, and for more ranks than this machine can have
/// as threads.
RunSpec run_to_verify(const RunConfig& config, int64_t tokenizer_vocabulary);

/// Largest difference of a gradient in f64: sums over ranks are in another order than on one rank.
inline constexpr double kGradientTolerance = 1e-10;

/// Largest relative difference of a loss in the dtype of the run, or of what gradients cross
/// between ranks in: a few roundings of that dtype after a few updates.
double loss_tolerance(const RunSpec& run);

/// Requires a tensor.
const TensorDifference& worst_of(const std::vector<TensorDifference>& tensors);

}  // namespace braid
