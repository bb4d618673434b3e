#include "calibrate/comm_timer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

#include "sim/measured_model.h"

namespace braid {
namespace {

constexpr std::array<int64_t, 2> kSizes = {4 << 10, 256 << 10};

TEST(CommTimer, TimesEveryKindInGroupsOfEverySizeThatFits) {
  const std::vector<CommPoint> points = time_in_process_communication(4, kSizes, 3);
  std::map<int, int> by_group_size;
  for (const CommPoint& point : points) {
    ++by_group_size[point.spec.placement.num_ranks];
    EXPECT_GT(point.timing.ns, 0);
    EXPECT_EQ(comm_fault(point.spec), "");
  }
  const int kinds_and_sizes = static_cast<int>(kNumCommKinds * kSizes.size());
  EXPECT_EQ(by_group_size, (std::map<int, int>{{2, kinds_and_sizes}, {4, kinds_and_sizes}}));
  EXPECT_TRUE(time_in_process_communication(1, kSizes, 3).empty());
}

TEST(CommTimer, PointsAreWhatAProfileHolds) {
  Profile profile{.device_kind = "cpu",
                  .origin = {.device = "d", .software = "s", .date = "2026-01-01"}};
  profile.launch_ns = 1;
  profile.communication = time_in_process_communication(2, kSizes, 3);
  EXPECT_EQ(parse_profile(print_profile(profile), "p.json"), profile);
  const auto model = make_measured_model(profile, 2);
  const auto [fastest, slowest] = std::ranges::minmax_element(
      profile.communication, {}, [](const CommPoint& point) { return point.timing.ns; });
  const int64_t fastest_ns = fastest->timing.ns;
  const int64_t slowest_ns = slowest->timing.ns;
  for (const CommPoint& point : profile.communication) {
    // Not always the very time: a model takes the mean where a larger size was faster.
    const Cost cost = model->comm_cost(point.spec);
    EXPECT_EQ(cost.source, CostSource::kMeasured);
    EXPECT_GE(cost.ns, fastest_ns);
    EXPECT_LE(cost.ns, slowest_ns);
  }
}

}  // namespace
}  // namespace braid
