#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "parity/layout_config.h"
#include "plan/run_spec.h"
#include "verify/layout_run.h"

namespace braid {
namespace {

constexpr int64_t kTokens = 12;

/// Of a step in f32.
struct Gradients {
  double loss = 0;
  UnitValues values;
};

Gradients run_step(const Layout& layout) {
  LayoutRun run(plan_run(resolve_run(config_of(layout), 0), {.update_weights = false}), {});
  std::mt19937 random(7);
  std::normal_distribution<double> weight(0.0, 0.2);
  UnitValues weights;
  for (const ParameterUnit& unit : run.plan().layout.units) {
    std::ranges::generate(weights.emplace_back(static_cast<size_t>(unit.num_elems)),
                          [&] { return weight(random); });
  }
  run.set_weights(weights);
  TokenBatch batch{.num_sequences = 4, .sequence = kTokens};
  for (int64_t i = 0; i < 4 * kTokens; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(random() % 101));
    batch.labels.push_back(static_cast<int32_t>(random() % 101));
  }
  Gradients gradients{.loss = run.step(batch, {})};
  gradients.values = run.read(StateBuffer::kMainGrad);
  return gradients;
}

class SlidingWindow : public testing::TestWithParam<const char*> {};

TEST_P(SlidingWindow, AsLongAsTheSequenceGivesTheBitsOfNone) {
  const std::string layout = std::string(GetParam()) + " train.global_batch=4";
  const Gradients none = run_step({kLlamaModel, layout});
  for (const char* const window : {"12", "13", "4096"}) {
    const Gradients windows =
        run_step({kLlamaModel, layout + " model.sliding_window=" + std::string(window)});
    EXPECT_EQ(windows.loss, none.loss) << window;
    EXPECT_EQ(windows.values, none.values) << window;
  }
}

// What hides one key of one query changes what the model computes.
TEST_P(SlidingWindow, OfOneTokenLessDoesNot) {
  const std::string layout = std::string(GetParam()) + " train.global_batch=4";
  EXPECT_NE(run_step({kLlamaModel, layout + " model.sliding_window=11"}).loss,
            run_step({kLlamaModel, layout}).loss);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SlidingWindow,
                         testing::Values("ranks=1", "ranks=1 memory.recompute=full",
                                         "ranks=2 context=2", "ranks=2 tensor=2",
                                         "ranks=2 context=2 context_method=all_gather"));

}  // namespace
}  // namespace braid
