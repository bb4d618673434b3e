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

// A step of llama-1b on an H200 takes 288.8 ms by events between its tasks (bench/notes.md): 155.9
// products, 101.0 attention, 32 the rest. 15%: as for the parts. SwiGLU was tasks of its own.
TEST(StepPrediction, IsWithin15PercentOfAMeasuredStep) {
  RunConfig config = llama_1b();
  config.runtime.fuse_swiglu = "off";
  const RunPlan plan = plan_run(config, 0);
  const auto model = make_analytic_model(parse_cluster("h200"));
  const SerialPrediction prediction =
      predict_serial(plan.ranks.front().programs[kTrainProgram], *model);
  const auto ms = [&](OpFamily family) {
    return static_cast<double>(prediction.family_ns[static_cast<size_t>(family)]) * 1e-6;
  };
  EXPECT_NEAR(static_cast<double>(prediction.compute_ns()) * 1e-6 / 288.8, 1.0, 0.15);
  EXPECT_NEAR(ms(OpFamily::kGemm) / 155.9, 1.0, 0.15);
  EXPECT_NEAR(ms(OpFamily::kAttention) / 101.0, 1.0, 0.2);
  EXPECT_NEAR(ms(OpFamily::kMemoryBound) / 31.9, 1.0, 0.15);
}

TEST(StepPrediction, IsToldInWords) {
  const RunPlan plan = plan_run(llama_1b(), 0);
  const auto model = make_analytic_model(parse_cluster("h200"));
  const std::string text = describe_prediction(plan, llama_1b(), *model);
  for (const char* part : {"cost     h200, analytic", "matrix products", "attention", "tokens/s",
                           "MFU", "100.0% analytic\n"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace braid
