#pragma once

#include <cstdint>
#include <string>

namespace braid {

/// The record of a finished step.
struct StepRecord {
  int64_t step = 0;  ///< from 1
  double loss = 0;   ///< mean over the global batch, nats per token
  double learning_rate = 0;
  double grad_norm = 0;
  double step_ms = 0;
  double tokens_per_s = 0;           ///< over all ranks
  double tflops_per_s_per_rank = 0;  ///< model FLOPs
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  int64_t skipped_steps = 0;  ///< since the start of the run
  int64_t nan_steps = 0;      ///< since the start of the run
};

/// Steps ran again because a device may have failed.
struct RerunRecord {
  int64_t step = 0;       ///< the last of them
  int64_t from_step = 0;  ///< the step to which the run went back
  std::string message;    ///< of the trainer: the reason, or what came of it
};

/// A held-out loss, measured with the weights after `step` (0: before the first step).
struct EvalRecord {
  int64_t step = 0;
  double loss = 0;  ///< nats per token
};

/// What FP8 copies of one factor of the products at one place lost in a step, over all ranks.
struct Fp8Record {
  int64_t step = 0;
  std::string site;      ///< "layers.0.attention.qkv"
  std::string factor;    ///< "x", "w" or "dy"
  double amax = 0;       ///< the largest magnitude before rounding
  double flushed = 0;    ///< share of elements that were not zero and became zero, 0 to 1
  double saturated = 0;  ///< share of finite elements beyond the largest FP8 number x scale, 0 to 1
};

}  // namespace braid
