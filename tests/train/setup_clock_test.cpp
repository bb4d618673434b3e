#include "train/setup_clock.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(SetupClock, SaysHowLongEachPhaseTook) {
  int64_t now_ns = 5'000'000'000;
  SetupClock clock([&] { return now_ns; });
  const auto pass = [&](int64_t ms, std::string_view phase) {
    now_ns += ms * 1'000'000;
    clock.end(phase);
  };
  pass(240, "data");
  pass(410, "plan");
  pass(1100, "kernels");
  EXPECT_EQ(clock.line(), "setup    1.8 s: data 0.2, plan 0.4, kernels 1.1");
  pass(4200, "weights");
  pass(60, "data");
  EXPECT_EQ(clock.line(), "setup    6.0 s: data 0.3, plan 0.4, kernels 1.1, weights 4.2");
}

TEST(SetupClock, CountsFromItsConstructionByASteadyClock) {
  SetupClock clock;
  clock.end("all");
  EXPECT_EQ(clock.line(), "setup    0.0 s: all 0.0");
}

}  // namespace
}  // namespace braid
