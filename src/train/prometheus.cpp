#include "train/prometheus.h"

#include <fmt/format.h>

#include <cmath>

namespace braid {
namespace {

/// Inside of quotes.
std::string label_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
  }
  return escaped;
}

std::string number_text(double value) {
  return std::isnan(value)   ? "NaN"
         : std::isinf(value) ? (value > 0 ? "+Inf" : "-Inf")
                             : fmt::format("{}", value);
}

}  // namespace

std::string prometheus_text(std::string_view run, const StepRecord& step,
                            const std::optional<EvalRecord>& evaluation) {
  std::string text;
  const auto add = [&](std::string_view name, std::string_view type, std::string_view help,
                       double value) {
    text +=
        fmt::format("# HELP braid_{0} {1}\n# TYPE braid_{0} {2}\nbraid_{0}{{run=\"{3}\"}} {4}\n",
                    name, help, type, label_text(run), number_text(value));
  };
  const auto count = [](int64_t number) { return static_cast<double>(number); };
  add("step", "gauge", "Last finished step.", count(step.step));
  add("loss", "gauge", "Loss of that step, nats per token.", step.loss);
  add("learning_rate", "gauge", "Learning rate of that step.", step.learning_rate);
  add("grad_norm", "gauge", "Norm of its gradients before clipping.", step.grad_norm);
  add("step_seconds", "gauge", "Its time.", step.step_ms * 1e-3);
  add("tokens_per_second", "gauge", "Tokens per second of all ranks.", step.tokens_per_s);
  add("tflops_per_second_per_rank", "gauge", "Model TFLOP/s of a rank.",
      step.tflops_per_s_per_rank);
  add("tokens_total", "counter", "Tokens trained on.", count(step.consumed_tokens));
  add("skipped_steps_total", "counter", "Steps without an update.", count(step.skipped_steps));
  add("nan_steps_total", "counter", "Steps with a loss that is not a number.",
      count(step.nan_steps));
  if (evaluation) {
    add("held_out_loss", "gauge", "Newest held-out loss, nats per token.", evaluation->loss);
  }
  return text;
}

}  // namespace braid
