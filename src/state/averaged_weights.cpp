#include "state/averaged_weights.h"

#include "base/errors.h"

namespace braid {

AveragedWeights::AveragedWeights(const StateSource& state, const std::string& path)
    : state_(state) {
  if (state.is_zero(StatePart::kEma)) {
    throw_config_error(
        "--ema: {} has no averages of weights; leave the option out, or train with optimizer.ema = "
        "0.999",
        path);
  }
}

void AveragedWeights::read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
                           WorkerPool& workers) const {
  check(part == StatePart::kWeights, "averaged weights have no optimizer state");
  state_.read(StatePart::kEma, unit, begin, out, workers);
}

}  // namespace braid
