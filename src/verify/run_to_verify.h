#pragma once

#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "plan/run_spec.h"
#include "verify/verify_layout.h"

namespace braid {

/// The run that shows whether the layout of `config` computes the same as one rank: `shrunken`.
/// `config` must be validated and resolved. Throws ConfigError for layouts that cannot run, also if
/// only the model of `config` prevents it, and for more ranks than this machine supports as
/// threads.
RunSpec run_to_verify(const RunConfig& config, int64_t tokenizer_vocabulary);

/// Maximum difference of a gradient in f64: sums over ranks have another order than on one rank.
inline constexpr double kGradientTolerance = 1e-10;

/// Maximum relative difference of a loss in the dtype of the run, or in the dtype in which
/// gradients cross between ranks: a few roundings of that dtype after a few updates.
double loss_tolerance(const RunSpec& run);

/// Requires at least one tensor.
const TensorDifference& worst_of(const std::vector<TensorDifference>& tensors);

}  // namespace braid
