#include "train/log_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

/// "2024-05-01 12:00:00.123456", local time.
std::string format_time(int64_t time_ns) {
  const std::time_t seconds = static_cast<std::time_t>(time_ns / 1'000'000'000);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:04d}-{:02d}-{:02d} {:02d}:{:02d}:{:02d}.{:06d}", local.tm_year + 1900,
                     local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec,
                     time_ns % 1'000'000'000 / 1000);
}

/// "margin 0.123, chosen 0.056, rejected -0.067, accuracy 71.9%".
std::string pairs_text(const PreferenceRecord& mean) {
  return fmt::format("margin {:.3f}, chosen {:.3f}, rejected {:.3f}, accuracy {:.1f}%",
                     mean.margin(), mean.chosen_reward, mean.rejected_reward, 100 * mean.accuracy);
}

}  // namespace

LogInterval::LogInterval(int64_t skipped_steps, int64_t nan_steps)
    : skipped_before_(skipped_steps), nan_before_(nan_steps) {
  last_.skipped_steps = skipped_steps;
  last_.nan_steps = nan_steps;
}

void LogInterval::add(const StepRecord& record) {
  const bool skipped = record.skipped_steps > last_.skipped_steps;
  last_ = record;
  ++num_steps_;
  num_reruns_ += record.reruns;
  if (!skipped) {
    ++num_advanced_;
    loss_sum_ += record.loss;
    mtp_loss_sums_.resize(record.mtp_losses.size());
    std::ranges::transform(mtp_loss_sums_, record.mtp_losses, mtp_loss_sums_.begin(), std::plus());
    if (record.z_loss) {
      z_loss_sum_ = z_loss_sum_.value_or(0) + *record.z_loss;
    }
    if (record.preference) {
      preference_sum_ = preference_sum_.value_or(PreferenceRecord{}) + *record.preference;
    }
  }
  ms_sum_ += record.step_ms;
  tokens_sum_ += record.tokens_per_s * record.step_ms / 1e3;
  tflops_sum_ += record.tflops_per_s_per_rank * record.step_ms / 1e3;
}

std::string LogInterval::take_line(int64_t time_ns, const RunSize& run, LogFormat format) {
  check(!empty(), "a log line of no step");
  std::string line = format == LogFormat::kMegatron ? megatron_line(time_ns, run) : short_line(run);
  *this = LogInterval(last_.skipped_steps, last_.nan_steps);
  return line;
}

std::string LogInterval::megatron_line(int64_t time_ns, const RunSize& run) const {
  const double tflops_per_s = ms_sum_ > 0 ? tflops_sum_ / (ms_sum_ / 1e3) : 0;
  std::string line = fmt::format(
      " [{}] iteration {:8d}/{:8d} | consumed samples: {:12d} |"
      " elapsed time per iteration (ms): {:.1f} | throughput per GPU (TFLOP/s/GPU): {:.1f} |"
      " learning rate: {:.6E} | global batch size: {:5d} |",
      format_time(time_ns), last_.step, run.num_steps, last_.consumed_samples, mean_ms(),
      tflops_per_s, last_.learning_rate, run.global_batch);
  if (num_advanced_ > 0) {
    line += fmt::format(" {} loss: {:.6E} |", preference_sum_ ? "preference" : "lm",
                        loss_sum_ / static_cast<double>(num_advanced_));
    for (size_t i = 0; i < mtp_loss_sums_.size(); ++i) {
      line += fmt::format(" mtp_{} loss: {:.6E} |", i + 1,
                          mtp_loss_sums_[i] / static_cast<double>(num_advanced_));
    }
    if (z_loss_sum_) {
      line += fmt::format(" z loss: {:.6E} |", *z_loss_sum_ / static_cast<double>(num_advanced_));
    }
    if (preference_sum_) {
      const PreferenceRecord mean = *preference_sum_ / static_cast<double>(num_advanced_);
      line += fmt::format(
          " rewards chosen: {:.6E} | rewards rejected: {:.6E} | rewards accuracy: {:.4f} |",
          mean.chosen_reward, mean.rejected_reward, mean.accuracy);
    }
  }
  if (expert_load_ > 0) {
    line += fmt::format(" busiest expert: {:.2f}x |", expert_load_);
  }
  if (room_.used > 0) {
    line += fmt::format(" room used: {:.0f}% |", room_.used * 100);
  }
  if (room_.dropped_share > 0) {
    line += fmt::format(" dropped rows: {:.3g}% |", room_.dropped_share * 100);
  }
  if (num_reruns_ > 0) {
    line += fmt::format(" reruns: {} |", num_reruns_);
  }
  // There is no loss scaling: braid has no fp16 training, which would need it.
  line += fmt::format(
      " loss scale: 1.0 | grad norm: {:.3f} | number of skipped iterations: {:3d} |"
      " number of nan iterations: {:3d} |",
      last_.grad_norm, last_.skipped_steps - skipped_before_, last_.nan_steps - nan_before_);
  return line;
}

std::string LogInterval::rare_figures() const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < mtp_loss_sums_.size() && num_advanced_ > 0; ++i) {
    parts.push_back(fmt::format("loss {} ahead {:.4f}", i + 2,
                                mtp_loss_sums_[i] / static_cast<double>(num_advanced_)));
  }
  if (z_loss_sum_) {
    parts.push_back(fmt::format("z {:.4g}", *z_loss_sum_ / static_cast<double>(num_advanced_)));
  }
  if (preference_sum_) {
    parts.push_back(pairs_text(*preference_sum_ / static_cast<double>(num_advanced_)));
  }
  if (expert_load_ > 0) {
    parts.push_back(fmt::format("busiest expert {:.2f}x", expert_load_));
  }
  if (room_.used > 0) {
    parts.push_back(fmt::format("room used {:.0f}%", room_.used * 100));
  }
  if (room_.dropped_share > 0) {
    parts.push_back(fmt::format("dropped rows {:.3g}%", room_.dropped_share * 100));
  }
  const auto add_count = [&](std::string_view what, int64_t count) {
    if (count > 0) {
      parts.push_back(fmt::format("{} {}", count, what));
    }
  };
  add_count("reruns", num_reruns_);
  add_count("skipped steps", last_.skipped_steps - skipped_before_);
  add_count("NaN steps", last_.nan_steps - nan_before_);
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string LogInterval::short_line(const RunSize& run) const {
  const double tokens_per_s = ms_sum_ > 0 ? tokens_sum_ / (ms_sum_ / 1e3) : 0;
  const std::string last_step = std::to_string(run.num_steps);
  const std::string line = fmt::format(
      "step {:>{}}/{}  loss {}  grad {:.3g}  lr {:.2e}  {}  {} tok/s", last_.step, last_step.size(),
      last_step,
      num_advanced_ > 0 ? fmt::format("{:.4f}", loss_sum_ / static_cast<double>(num_advanced_))
                        : "-",
      last_.grad_norm, last_.learning_rate, format_duration(mean_ms() * 1e-3),
      format_count(std::llround(tokens_per_s)));
  const std::string rare = rare_figures();
  return rare.empty() ? line : fmt::format("{}\n     {}", line, rare);
}

std::string loss_note(int64_t interval, bool pairs) {
  return fmt::format("loss: mean {} over the {}", pairs ? "per pair of answers" : "nats per token",
                     interval == 1 ? "step" : "steps since the line before");
}

std::string evaluation_line(const EvalRecord& record, LogFormat format) {
  if (record.preference && format == LogFormat::kShort) {
    return fmt::format("step {}  held-out loss {:.4f}  margin {:.3f}, accuracy {:.1f}%",
                       record.step, record.loss, record.preference->margin(),
                       100 * record.preference->accuracy);
  }
  if (record.preference) {
    return fmt::format(
        " validation loss at iteration {} | preference loss value: {:.6E} | rewards margin: {:.6E} "
        "| rewards accuracy: {:.4f} |",
        record.step, record.loss, record.preference->margin(), record.preference->accuracy);
  }
  if (format == LogFormat::kShort) {
    return fmt::format("step {}  held-out loss {:.4f}  perplexity {:.4g}", record.step, record.loss,
                       std::exp(std::min(20.0, record.loss)));
  }
  return fmt::format(
      " validation loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} |",
      record.step, record.loss, std::exp(std::min(20.0, record.loss)));
}

}  // namespace braid
