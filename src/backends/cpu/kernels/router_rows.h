#pragma once

#include <cmath>

#include "backends/cpu/kernels/support.h"
#include "backends/cpu/kernels/vector_math.h"

/// Shared parts of the kernels of routers (ops/router.h), which compute in the type of the logits.
namespace braid {

/// Added to a sum of sigmoids, as in DeepSeek-V3.
inline constexpr double kTinySum = 1e-20;

/// exp(logit - largest) of a row adds up to `total`: NaN if a logit is NaN or +infinity, or all are
/// -infinity.
template <class W>
struct RowExp {
  W largest = 0;
  W total = 0;

  RowExp(const W* logits, int64_t count) : largest(logits[0]) {
    for (int64_t e = 0; e < count; ++e) {
      largest = logits[e] > largest ? logits[e] : largest;
    }
    for (int64_t e = 0; e < count; ++e) {
      total += vector_math::exp(logits[e] - largest);
    }
  }
  W softmax(W logit) const { return vector_math::exp(logit - largest) / total; }
  W log_sum() const { return largest + std::log(total); }
};

/// A spec whose operand 0 has accumulators.
template <class Make>
CpuKernel dispatch_accumulator(const OpSpec& spec, const Make& make) {
  return spec.operands.at(0).dtype == DType::kF64 ? make.template operator()<double>()
                                                  : make.template operator()<float>();
}

}  // namespace braid
