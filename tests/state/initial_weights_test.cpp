#include "state/initial_weights.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "support/model_state.h"
#include "support/small_model.h"

namespace braid {
namespace {

TEST(InitialWeights, AreTheInitialValuesOfEachParameterInPiecesOfAnySize) {
  const ModelSpec model = small_gpt2();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const ModelState expected = initial_state(layout, model, 7);
  const InitialWeights weights(layout, model, 7);
  for (const int64_t piece_elems : {int64_t{1} << 20, int64_t{1000}, int64_t{37}}) {
    const ModelState read = whole_state(layout, weights, piece_elems);
    EXPECT_EQ(read.weights, expected.weights) << piece_elems;
    EXPECT_EQ(read.exp_avg, expected.exp_avg) << piece_elems;
    EXPECT_EQ(read.exp_avg_sq, expected.exp_avg_sq) << piece_elems;
  }
}

TEST(InitialWeights, AreTheSameForAnyNumberOfWorkers) {
  ModelSpec model = small_gpt2();
  model.vocabulary = 5000;  // 100 K elements: enough for all
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const InitialWeights weights(layout, model, 3);
  const std::vector<float> expected = initial_state(layout, model, 3).weights.front();
  for (const int num_workers : {1, 2, 5}) {
    WorkerPool workers(num_workers);
    std::vector<float> read(expected.size(), -1.0f);
    weights.read(StatePart::kWeights, 0, 0, read, workers);
    EXPECT_EQ(read, expected) << num_workers;
  }
}

TEST(InitialWeights, HaveZerosForOptimizerStateAndSaySo) {
  const ModelSpec model = small_gpt2();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const InitialWeights weights(layout, model, 7);
  EXPECT_FALSE(weights.is_zero(StatePart::kWeights));
  EXPECT_TRUE(weights.is_zero(StatePart::kExpAvg));
  EXPECT_TRUE(weights.is_zero(StatePart::kExpAvgSq));
}

TEST(InitialWeights, DependOnTheSeed) {
  const ModelSpec model = small_gpt2();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  EXPECT_NE(whole_state(layout, InitialWeights(layout, model, 7)).weights,
            whole_state(layout, InitialWeights(layout, model, 8)).weights);
}

TEST(InitialWeights, RefuseARangeOutsideTheUnit) {
  const ModelSpec model = small_gpt2();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  const InitialWeights weights(layout, model, 7);
  WorkerPool workers(1);
  std::vector<float> two(2);
  const int64_t size = layout.units[1].num_elems;
  EXPECT_NO_THROW(weights.read(StatePart::kWeights, 1, size - 2, two, workers));
  EXPECT_THROW(weights.read(StatePart::kWeights, 1, size - 1, two, workers), InternalError);
  EXPECT_THROW(weights.read(StatePart::kWeights, 1, -1, two, workers), InternalError);
}

}  // namespace
}  // namespace braid
