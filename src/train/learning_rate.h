#pragma once

#include <cstdint>

#include "plan/run_spec.h"

namespace braid {

/// Learning rate of step `step`, counted from 1. Rises linearly to the full rate at the last warmup
/// step, then follows optimizer.schedule down to optimizer.min_learning_rate:
///   cosine: half a cosine from the end of the warmup to decay_steps (0: num_steps);
///   wsd: full rate until the last decay_steps, which decay by decay_shape; Source: Hu et al.,
///   MiniCPM, 2024; constant: full rate.
double learning_rate_at(const LearningRateSpec& rate, int64_t step);

}  // namespace braid
