#include "plan/step_prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/validate.h"
#include "sim/analytic_model.h"
#include "sim/predict.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

RunConfig llama_1b() {
  RunConfig config;
  config.model.preset = "llama-1b";
  config.model.tied_embeddings = false;
  config.train.dtype = "bfloat16";
  config.train.sequence = 8192;
  config.train.microbatch = 2;
  config.train.global_batch = 2;
  return resolved(config);
}

// A step of llama-1b on an H200 takes 267.4 ms; products take 180 ms and the rest 22.0
// (bench/gpu/h200.md), attention 73.9 (llama-1b-zero1 in bench/gpu/results/h200_emulated). The goal
// of a step is 5%.
TEST(StepPrediction, IsWithin5PercentOfAMeasuredStep) {
  const RunPlan plan = plan_run(resolve_run(llama_1b(), 0));
  const auto model = make_analytic_model(parse_cluster("h200"));
  const SerialPrediction prediction =
      predict_serial(plan.ranks.front().programs[kTrainProgram], *model);
  const auto ms = [&](OpFamily family) {
    return static_cast<double>(prediction.family_ns[static_cast<size_t>(family)]) * 1e-6;
  };
  EXPECT_NEAR(static_cast<double>(prediction.compute_ns()) * 1e-6 / 267.4, 1.0, 0.05);
  EXPECT_NEAR(ms(OpFamily::kGemm) / 180.0, 1.0, 0.05);
  EXPECT_NEAR(ms(OpFamily::kAttention) / 73.9, 1.0, 0.08);
  EXPECT_NEAR(ms(OpFamily::kMemoryBound) / 22.0, 1.0, 0.08);
}

TEST(StepPrediction, IsToldInWords) {
  const RunPlan plan = plan_run(resolve_run(llama_1b(), 0));
  const auto model = make_analytic_model(parse_cluster("h200"));
  const std::string text = describe_prediction(plan, *model);
  for (const char* part : {"cost     h200, analytic", "matrix products", "attention", "tokens/s",
                           "MFU", "100.0% analytic\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// The first stage only looks tokens up: the step is not as short as its tasks.
TEST(StepPrediction, IsOfTheBusiestRank) {
  RunConfig config = llama_1b();
  config.parallel.ranks = 2;
  config.parallel.data = 1;
  config.parallel.pipeline = 2;
  config.parallel.pipeline_layout = "E|t*16L";
  const auto model = make_analytic_model(parse_cluster("h200x2"));
  const std::string both = describe_prediction(plan_run(resolve_run(resolved(config), 0)), *model);
  EXPECT_THAT(both, HasSubstr("per step, tasks of rank 1, the busiest, one after the other"));
  const std::string second =
      describe_prediction(plan_run(resolve_run(resolved(config), 0), {.ranks = {1}}), *model);
  EXPECT_EQ(both.substr(both.find("predict"), 20), second.substr(second.find("predict"), 20));
}

}  // namespace
}  // namespace braid
