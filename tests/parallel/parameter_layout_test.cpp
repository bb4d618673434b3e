#include "parallel/parameter_layout.h"

#include <gtest/gtest.h>

#include "base/errors.h"

namespace braid {
namespace {

Parameter parameter(const std::string& name, const std::string& unit, const Shape& shape,
                    bool decays) {
  return {.name = name, .shape = shape, .weight_decay = decays, .unit = unit};
}

TEST(ParameterLayout, DecayingOnesComeFirstAtAlignedOffsets) {
  const ParameterLayout layout = make_parameter_layout({
      parameter("a.norm", "a", {5}, false),
      parameter("a.w", "a", {3, 7}, true),
      parameter("a.v", "a", {64}, true),
      parameter("b.w", "b", {1}, true),
  });
  ASSERT_EQ(layout.units.size(), 2u);
  EXPECT_EQ(layout.slot("a.w").begin, 0);
  EXPECT_EQ(layout.slot("a.w").end, 21);
  EXPECT_EQ(layout.slot("a.v").begin, 64);
  EXPECT_EQ(layout.slot("a.norm").begin, 128);
  EXPECT_EQ(layout.slot("a.norm").end, 133);
  EXPECT_EQ(layout.units[0].decay_end, 128);
  EXPECT_EQ(layout.units[0].num_elems, 192);
  EXPECT_EQ(layout.units[1].num_elems, 64);
  EXPECT_EQ(layout.units[1].decay_end, 64);
}

TEST(ParameterLayout, RealModelsHaveNoGaps) {
  const ParameterLayout layout =
      make_parameter_layout(model_parameters(find_preset("llama-8b").spec));
  int64_t total = 0;
  for (const ParameterUnit& unit : layout.units) {
    total += unit.num_elems;
  }
  EXPECT_EQ(total, num_parameters(find_preset("llama-8b").spec));
}

TEST(ParameterLayout, TwoParametersOfOneNameAreABug) {
  EXPECT_THROW(
      make_parameter_layout({parameter("a", "u", {1}, true), parameter("a", "u", {1}, true)}),
      InternalError);
}

}  // namespace
}  // namespace braid
