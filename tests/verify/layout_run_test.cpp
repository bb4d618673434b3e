#include "verify/layout_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/expect_error.h"
#include "plan/run_spec.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;

RunConfig two_stages() {
  RunConfig config = small_config();
  config.parallel.ranks = 2;
  config.parallel.pipeline = 2;
  config.train.global_batch = 2;
  validate(config);
  return resolved(config);
}

TokenBatch tokens_of(const RunConfig& config) {
  const auto elems = static_cast<size_t>(config.train.global_batch * config.train.sequence);
  return {.num_sequences = config.train.global_batch,
          .sequence = config.train.sequence,
          .tokens = std::vector<int32_t>(elems, 7),
          .labels = std::vector<int32_t>(elems, 3)};
}

double step(const RunConfig& config, const LayoutRunOptions& options) {
  LayoutRun run(plan_run(resolve_run(config, 50)), options);
  UnitValues weights;
  for (const ParameterUnit& unit : run.plan().layout.units) {
    weights.emplace_back(static_cast<size_t>(unit.num_elems), 0.01);
  }
  run.set_weights(weights);
  return run.step(tokens_of(config), std::array{1e-3f, 0.1f, 0.05f});
}

TEST(LayoutRun, TakesOptionsFromTheConfiguration) {
  RunConfig config = two_stages();
  config.runtime.timeout_s = 7;
  config.links.pipeline_latency_us = 2.5;
  config.links.tensor_gb_per_s = 450;
  const LayoutRunOptions options = layout_run_options(resolve_run(config, 50), 3);
  EXPECT_EQ(options.threads_per_rank, 3);
  EXPECT_EQ(options.timeout_ns, 7'000 * kMs);
  EXPECT_EQ(options.links[GroupKind::kPipeline].latency_ns, 2500);
  EXPECT_EQ(options.links[GroupKind::kTensor].bytes_per_s, 450e9);
  EXPECT_FALSE(options.links[GroupKind::kData].is_limited());
}

// Forward and backward cross between the stages: twice the latency at least.
TEST(LayoutRun, EmulatedLinksTakeTheirTimeAndChangeNothing) {
  const RunConfig config = two_stages();
  LayoutRunOptions options;
  const double loss = step(config, options);
  options.links[GroupKind::kPipeline].latency_ns = 25 * kMs;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(step(config, options), loss);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
}

// The gradients of the first stage, which has both layers, are under way for long after those of
// the last one have arrived; its ranks then wait in a sum over all.
TEST(LayoutRun, WaitsNoLongerThanItsTimeout) {
  RunConfig config = two_stages();
  config.parallel.ranks = 4;
  config.parallel.data = 2;
  config.parallel.pipeline_layout = "Ett|L";
  config.train.global_batch = 4;
  LayoutRunOptions options{.timeout_ns = 100 * kMs};
  options.links[GroupKind::kData].bytes_per_s = 1e5;
  EXPECT_THAT(message_of<DeviceError>([&] { step(config, options); }),
              AllOf(HasSubstr(" waited 0.1 s in group "), HasSubstr(" is busy with ")));
}

}  // namespace
}  // namespace braid
