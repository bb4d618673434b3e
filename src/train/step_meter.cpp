#include "train/step_meter.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "runtime/engine.h"

namespace braid {
namespace {

int64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

StepMeter::StepMeter(StepMeterOptions options)
    : options_(std::move(options)), last_end_ns_(std::numeric_limits<int64_t>::min()) {
  if (!options_.now_ns) {
    options_.now_ns = steady_ns;
  }
}

void StepMeter::continue_from(const StepRecord& last) {
  skipped_steps_ = last.skipped_steps;
  nan_steps_ = last.nan_steps;
}

void StepMeter::begin(int64_t step, double learning_rate) {
  begun_.push_back({.step = step, .learning_rate = learning_rate, .begin_ns = options_.now_ns()});
}

StepRecord StepMeter::end(const StepResult& result) {
  check(!begun_.empty(), "a step ends that has not begun");
  const int64_t end_ns = options_.now_ns() - result.lateness_ns;
  const BegunStep begun = begun_.front();
  begun_.pop_front();
  const double seconds =
      static_cast<double>(end_ns - std::max(begun.begin_ns, last_end_ns_)) * 1e-9;
  last_end_ns_ = end_ns;
  skipped_steps_ += result.skipped ? 1 : 0;
  nan_steps_ += std::isfinite(result.loss) ? 0 : 1;
  tokens_per_s_.push_back(static_cast<double>(options_.tokens_per_step) / seconds);
  const DataCount consumed =
      options_.start.after(begun.step, options_.global_batch, options_.tokens_per_step);
  const double flops_per_s = options_.flops_per_token * tokens_per_s_.back();
  return {.step = begun.step,
          .loss = result.loss,
          .learning_rate = begun.learning_rate,
          .grad_norm = result.grad_norm,
          .step_ms = seconds * 1e3,
          .tokens_per_s = tokens_per_s_.back(),
          .tflops_per_s_per_rank = flops_per_s * 1e-12 / static_cast<double>(options_.num_ranks),
          .consumed_samples = consumed.samples,
          .consumed_tokens = consumed.tokens,
          .skipped_steps = skipped_steps_,
          .nan_steps = nan_steps_,
          .reruns = result.reruns,
          .mtp_losses = result.mtp_losses,
          .z_loss = result.z_loss,
          .preference = result.preference};
}

double StepMeter::median_tokens_per_s() const {
  if (tokens_per_s_.empty()) {
    return 0;
  }
  std::vector<double> values = tokens_per_s_;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace braid
