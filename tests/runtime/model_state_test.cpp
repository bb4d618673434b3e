#include "runtime/model_state.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/parameters.h"

namespace braid {
namespace {

ModelSpec small_model() {
  ModelSpec spec = find_preset("gpt2-124m").spec;
  spec.layers = 2;
  spec.width = 20;  // not a multiple of the 64 elements that parameters are aligned to
  spec.heads = 2;
  spec.kv_heads = 2;
  spec.head_size = 10;
  spec.ffn = 36;
  spec.vocabulary = 50;
  spec.max_positions = 12;
  return spec;
}

TEST(EmptyState, HasZerosForAllUnits) {
  const ParameterLayout layout = make_parameter_layout(model_parameters(small_model()));
  const ModelState state = empty_state(layout);
  for (const auto* part : {&state.weights, &state.exp_avg, &state.exp_avg_sq}) {
    ASSERT_EQ(part->size(), layout.units.size());
    for (size_t unit = 0; unit < part->size(); ++unit) {
      EXPECT_EQ((*part)[unit],
                std::vector<float>(static_cast<size_t>(layout.units[unit].num_elems), 0.0f));
    }
  }
}

TEST(InitialState, HoldsTheInitialValuesOfEachParameter) {
  const ModelSpec model = small_model();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  ModelState state = initial_state(layout, model, 7);
  for (const Parameter& parameter : layout.parameters) {
    std::vector<float> expected(static_cast<size_t>(parameter.shape.num_elems()));
    initial_values(parameter, model.vocabulary, 7, 0, expected);
    const auto elements = elements_of(layout, parameter.name, state.weights);
    EXPECT_TRUE(std::equal(elements.begin(), elements.end(), expected.begin(), expected.end()))
        << parameter.name;
  }
  EXPECT_EQ(state.exp_avg, empty_state(layout).exp_avg);
  EXPECT_EQ(state.exp_avg_sq, empty_state(layout).exp_avg_sq);
}

TEST(InitialState, LeavesZerosBetweenParameters) {
  const ModelSpec model = small_model();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  ModelState state = initial_state(layout, model, 7);
  for (const Parameter& parameter : layout.parameters) {
    std::ranges::fill(elements_of(layout, parameter.name, state.weights), 0.0f);
  }
  EXPECT_EQ(state.weights, empty_state(layout).weights);
}

TEST(InitialState, DependsOnTheSeed) {
  const ModelSpec model = small_model();
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  EXPECT_EQ(initial_state(layout, model, 7).weights, initial_state(layout, model, 7).weights);
  EXPECT_NE(initial_state(layout, model, 7).weights, initial_state(layout, model, 8).weights);
}

TEST(ElementsOf, AreTheParametersOwn) {
  const ParameterLayout layout = make_parameter_layout(model_parameters(small_model()));
  ModelState state = empty_state(layout);
  float next = 0;
  for (const Parameter& parameter : layout.parameters) {
    const auto elements = elements_of(layout, parameter.name, state.weights);
    ASSERT_EQ(static_cast<int64_t>(elements.size()), parameter.shape.num_elems());
    std::ranges::fill(elements, ++next);
  }
  next = 0;
  for (const Parameter& parameter : layout.parameters) {
    ++next;
    for (const float value : elements_of(layout, parameter.name, state.weights)) {
      ASSERT_EQ(value, next) << parameter.name << " overlaps another parameter";
    }
  }
}

}  // namespace
}  // namespace braid
