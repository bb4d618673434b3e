#pragma once

#include <string>

#include "state/state_source.h"

namespace braid {

/// The averages of a state's weights (optimizer.ema) as weights.
class AveragedWeights final : public StateSource {
 public:
  /// `state` must outlive this object; `path` is where it comes from. Throws ConfigError naming
  /// --ema if it has no averages.
  AveragedWeights(const StateSource& state, const std::string& path);

  bool is_zero(StatePart part) const override { return part != StatePart::kWeights; }
  void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool& workers) const override;

 private:
  const StateSource& state_;
};

}  // namespace braid
