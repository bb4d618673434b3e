#include "parallel/parameter_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/parameter_layout.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

Parameter named(const std::string& name, bool decays = true) {
  return {.name = name, .shape = {10, 10}, .weight_decay = decays, .layer = 0, .unit = "layers.0"};
}

const ParameterGroups kGroups{.no_decay = {"embedding.*", "*.b"},
                              .rates = {{"*.a", 0.5}, {"layers.*", 2.0}}};

TEST(ParameterGroups, TheFirstPatternThatFitsIsTheRate) {
  const auto applied = [](const std::string& name) {
    Parameter parameter = named(name);
    apply_groups(kGroups, parameter);
    return std::pair(parameter.weight_decay, parameter.rate);
  };
  EXPECT_EQ(applied("layers.0.a"), std::pair(true, 0.5));
  EXPECT_EQ(applied("layers.0.b"), std::pair(false, 2.0));
  EXPECT_EQ(applied("embedding.c"), std::pair(false, 1.0));
  EXPECT_EQ(applied("head"), std::pair(true, 1.0));
}

TEST(ParameterGroups, APatternThatFitsNothingIsFound) {
  EXPECT_THAT(patterns_without_parameter(
                  kGroups, std::vector{named("layers.0.a"), named("embedding.tokens")}),
              ElementsAre("*.b"));
}

// Runs of equal updates lie one behind the other: decayed ones first, then by rate.
TEST(ParameterGroups, AreRunsOfAUnit) {
  std::vector<Parameter> parameters = {named("layers.0.a"), named("layers.0.b"),
                                       named("layers.1.a"), named("layers.0.c"),
                                       named("norm", false)};
  for (Parameter& parameter : parameters) {
    apply_groups(kGroups, parameter);
  }
  const ParameterLayout layout = make_parameter_layout(parameters);
  ASSERT_EQ(layout.units.size(), 1u);
  std::vector<std::tuple<int64_t, int64_t, bool, double>> runs;
  for (const UpdateRun& run : layout.units[0].runs) {
    runs.emplace_back(run.begin, run.end, run.weight_decay, run.rate);
  }
  EXPECT_THAT(runs,
              ElementsAre(std::tuple(0, 256, true, 0.5), std::tuple(256, 384, true, 2.0),
                          std::tuple(384, 512, false, 2.0), std::tuple(512, 640, false, 1.0)));
  EXPECT_EQ(layout.slot("layers.1.a").begin, 128);
  EXPECT_EQ(layout.units[0].decay_end, 384);
}

TEST(ParameterGroups, HaveALineEach) {
  ParallelOptions options;
  options.groups = kGroups;
  EXPECT_EQ(describe_groups(options, 0.1,
                            std::vector{named("layers.0.b"), named("layers.0.a"),
                                        named("layers.1.b"), named("norm", false)}),
            "groups    1 parameter, 100 elements: weight_decay 0, learning_rate x 1\n"
            "          2 parameters, 200 elements: weight_decay 0, learning_rate x 2\n"
            "          1 parameter, 100 elements: weight_decay 0.1, learning_rate x 0.5\n");
}

}  // namespace
}  // namespace braid
