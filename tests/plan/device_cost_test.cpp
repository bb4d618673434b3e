#include "plan/device_cost.h"

#include <gmock/gmock.h>

#include "backends/registry/registry.h"
#include "base/errors.h"
#include "base/expect_error.h"
#include "plan/run_costs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RunConfig config_of(int64_t ranks) {
  RunConfig config;
  config.parallel.ranks = ranks;
  config.overlap.cost = "device";
  return config;
}

std::string cost_of(int64_t ranks, const std::string& gpu, int64_t ranks_per_host = 8) {
  return with_device_cost(config_of(ranks), gpu, ranks_per_host).overlap.cost;
}

TEST(DeviceCost, IsTheClusterOfTheGpu) {
  EXPECT_EQ(cost_of(2, "NVIDIA H200"), "h200x2");
  EXPECT_EQ(cost_of(8, "NVIDIA H100 80GB HBM3"), "h100x8");
  EXPECT_EQ(cost_of(12, "NVIDIA A100-SXM4-80GB"), "a100x16");
  const RunConfig named = with_device_cost(config_of(12), "NVIDIA B200", 8);
  EXPECT_EQ(overlap_cost_model(named)->cluster().name, "b200x16");
  RunConfig other = config_of(2);
  other.overlap.cost = "h100x2";
  EXPECT_EQ(with_device_cost(other, std::nullopt, 2), other);
}

TEST(DeviceCost, HasTheHostsOfTheRun) {
  EXPECT_EQ(cost_of(4, "NVIDIA H200", 4), "h200x4");
  EXPECT_EQ(cost_of(8, "NVIDIA H200", 4), "h200x8:4");
  EXPECT_EQ(cost_of(2, "NVIDIA H200", 1), "h200x2:1");
  EXPECT_EQ(cost_of(16, "NVIDIA H200", 16), "h200x16:16");
  EXPECT_EQ(cost_of(10, "NVIDIA H200", 4), "h200x12:4");
  const auto model = overlap_cost_model(with_device_cost(config_of(8), "NVIDIA H200", 4));
  EXPECT_EQ(model->cluster().num_nodes(), 2);
}

TEST(DeviceCost, KnowsDevicesAsTheirBackendsDo) {
  for (const DeviceSpec& device : known_devices()) {
    EXPECT_EQ(device.is_host, backend_named(device.backend).is_host) << device.kind;
  }
}

TEST(DeviceCost, RefusesDevicesThatNothingIsKnownOf) {
  EXPECT_THAT(message_of<ConfigError>([] { with_device_cost(config_of(2), std::nullopt, 2); }),
              HasSubstr("overlap.cost = \"device\": the run is on a CPU"));
  EXPECT_THAT(message_of<ConfigError>([] { cost_of(4, "Tesla T4"); }),
              AllOf(HasSubstr("no data sheet for \"Tesla T4\", only for a100, a100-40, a100-pcie"),
                    HasSubstr("as in overlap.cost = \"a100x4\"")));
}

TEST(DeviceCost, IsNamedWhereNoDeviceIsLookedFor) {
  EXPECT_THAT(
      message_of<ConfigError>([] { overlap_cost_model(config_of(9)); }),
      AllOf(HasSubstr("this command does not look for one; name one of a100, a100-40, a100-pcie"),
            HasSubstr("--set overlap.cost=h200x16, or `braid plan --cost`")));
}

}  // namespace
}  // namespace braid
