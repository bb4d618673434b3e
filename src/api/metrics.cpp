#include <filesystem>

#include "api/run_state.h"
#include "api/step_result.h"
#include "base/errors.h"
#include "report/metrics_file.h"

namespace braid::api {

TrainStep step_result(const StepRecord& record) {
  TrainStep step;
  step.step = record.step;
  step.loss = record.loss;
  step.grad_norm = record.grad_norm;
  step.learning_rate = record.learning_rate;
  step.tokens_per_s = record.tokens_per_s;
  step.step_ms = record.step_ms;
  step.tflops_per_s_per_rank = record.tflops_per_s_per_rank;
  step.consumed_samples = record.consumed_samples;
  step.consumed_tokens = record.consumed_tokens;
  return step;
}

Metrics read_metrics(const std::string& run_folder) {
  return with_public_errors([&] {
    const std::filesystem::path path = std::filesystem::path(run_folder) / "metrics.jsonl";
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      throw_data_error("'{}' is not there: '{}' is no folder of a run that has begun to train",
                       path.string(), run_folder);
    }
    const braid::Metrics found = braid::read_metrics(path.string());
    Metrics result;
    for (const StepRecord& record : found.steps) {
      result.steps.push_back(step_result(record));
    }
    for (const EvalRecord& record : found.evaluations) {
      result.evaluations.push_back({.step = record.step, .loss = record.loss});
    }
    result.damage = damage_note(found);
    return result;
  });
}

}  // namespace braid::api
