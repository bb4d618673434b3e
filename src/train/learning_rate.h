#pragma once

#include <cstdint>

#include "plan/run_spec.h"

namespace braid {

/// Learning rate of step `step`, counted from 1. Rises linearly to the full rate at the last warmup
/// step, then follows optimizer.schedule down to optimizer.min_learning_rate:
///   cosine: half a cosine from the end of the warmup to decay_steps (0: num_steps);
///   linear, polynomial: in its place a line, or the power `power` of one that ends at 0;
///   inverse_sqrt: the full rate times sqrt(warmup_steps / step), and not below the minimum
///   (warmup_steps 0 counts as 1);
///   wsd: full rate until the last decay_steps, which decay by decay_shape; Source: Hu et al.,
///   MiniCPM, 2024; constant: full rate.
double learning_rate_at(const LearningRateSpec& rate, int64_t step);

}  // namespace braid
