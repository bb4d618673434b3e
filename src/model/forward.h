#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "model/model_spec.h"
#include "ops/graph.h"

namespace braid {

enum class ForwardEnd : uint8_t {
  kLoss,  ///< ends in the value "loss" f32 [1]; needs the inputs "labels" i32 [N] and "loss_scale"
          ///< f32 [1]
  kLogits,  ///< ends in the output "logits" [N, padded vocabulary]
};

struct ForwardOptions {
  int64_t microbatch = 1;  ///< B sequences
  int64_t sequence = 1;    ///< T tokens each; N = B * T rows
  DType dtype = DType::kF32;
  ForwardEnd end = ForwardEnd::kLoss;
};

/// Forward graph of one microbatch through the whole model; its input is the value "tokens" i32
/// [N]. Residual additions are fused with the norm behind them. Parameters are values of the names
/// of `model_parameters`. Throws ConfigError if GPT-2's position table is shorter than the
/// sequence.
StageGraph build_forward(const ModelSpec& spec, const ForwardOptions& options);

}  // namespace braid
