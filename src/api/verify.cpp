#include "api/run_state.h"
#include "runtime/engine.h"
#include "verify/run_to_verify.h"

namespace braid::api {

Verification Run::verify(const VerifyOptions& options) const {
  return with_public_errors([&] {
    if (options.steps < 1) {
      throw_config_error("steps = {}: it must be at least 1", options.steps);
    }
    const auto& [config, vocabulary] = state_->planned;
    const RunSpec run = run_to_verify(config, vocabulary);
    const int threads = threads_per_rank(config.runtime.threads, config.parallel.ranks);
    const LayoutComparison found =
        compare_with_one_rank(run, {.steps = options.steps, .threads_per_rank = threads});
    const TensorDifference& gradient = worst_of(found.gradients);
    Verification result;
    result.worst_gradient = gradient.name;
    result.gradient_difference = gradient.difference;
    result.gradient_tolerance = kGradientTolerance;
    result.loss_difference = found.worst_loss();
    result.loss_tolerance = loss_tolerance(run);
    result.equal = gradient.difference <= kGradientTolerance &&
                   result.loss_difference <= result.loss_tolerance;
    result.losses = found.losses;
    result.one_rank_losses = found.one_rank_losses;
    return result;
  });
}

}  // namespace braid::api
