#include <gtest/gtest.h>

#include <array>

#include "memory/verify_plan.h"
#include "model/families.h"
#include "model/model_spec.h"
#include "parallel/step_program.h"
#include "passes/pipeline.h"
#include "passes/runner.h"

namespace braid {
namespace {

/// The training step of rank 0 of 2, after all passes.
Program train_program(const ModelSpec& model, const TrainProgramOptions& options) {
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const Mesh mesh({.data = 2});
  return run_passes(build_train_program(model, layout, mesh, 0, options), default_pipeline(), {},
                    {.verify = false})
      .program;
}

void expect_tight_plan(const ModelSpec& model, const TrainProgramOptions& options) {
  const Program program = train_program(model, options);
  const MemoryPlan plan = plan_memory(std::array<const Program*, 1>{&program});
  EXPECT_TRUE(verify_plan(program, plan, 0).empty());
  EXPECT_LE(static_cast<double>(plan.step_bytes),
            1.05 * static_cast<double>(plan.programs[0].max_live_bytes));
}

// One microbatch is the hardest case: no gradient accumulator is live all along, so that buffers
// of many sizes take turns.
TEST(PresetMemory, IsWithinFivePercentOfTheBytesLiveAtOnce) {
  for (const ModelPreset& preset : model_presets()) {
    SCOPED_TRACE(preset.name);
    expect_tight_plan(preset.spec, {.sequence = 1024, .dtype = DType::kBF16});
  }
}

TEST(PresetMemory, IsTightInSinglePrecisionAndOverMicrobatchesToo) {
  for (const char* name : {"gpt2-124m", "gpt2-1.5b", "llama-8b"}) {
    SCOPED_TRACE(name);
    expect_tight_plan(find_preset(name).spec, {.sequence = 1024});
    expect_tight_plan(find_preset(name).spec, {.sequence = 512, .num_microbatches = 4});
  }
}

}  // namespace
}  // namespace braid
