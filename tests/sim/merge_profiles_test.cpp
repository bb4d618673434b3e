#include "sim/merge_profiles.h"

#include "sim/sim_specs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CommPoint gather(int64_t bytes, int64_t ns) {
  return {{CommKind::kAllGather, CommAlgorithm::kRing, {8, 1, 8}, bytes}, {ns, 0.01}};
}

Profile older_profile() {
  return {.device_kind = "h200",
          .origin = {.device = "NVIDIA H200", .software = "driver 1", .date = "2026-01-30"},
          .peak_flops_per_s = {{DType::kF32, 1e12}},
          .memory_bytes_per_s = 4e12,
          .launch_ns = 1700,
          .contention = Contention{{0.5, 1.0}, {0.75, 0.9}, {1.0, 1.0}, 16},
          .tasks = {{linear_spec(64, 32, 16), {1000, 0.01}}, {add_spec(4096), {900, 0.5}}},
          .to_device = {{1 << 20, {30'000, 0.1}}},
          .to_host = {{1 << 20, {31'000, 0.1}}},
          .communication = {gather(1 << 20, 50'000)}};
}

Profile newer_profile() {
  return {.device_kind = "h200",
          .origin = {.device = "NVIDIA H200", .software = "driver 1", .date = "2026-01-31"},
          .peak_flops_per_s = {{DType::kF32, 2e12}},
          .launch_ns = 1600,
          .tasks = {{add_spec(4096), {800, 0.1}}, {add_spec(8192), {1500, 0.1}}},
          .to_host = {{1 << 20, {29'000, 0.1}}, {2 << 20, {60'000, 0.1}}},
          .communication = {gather(1 << 21, 70'000), gather(1 << 20, 40'000)}};
}

TEST(MergeProfiles, KeepsWhatOneHasAndTakesTheNewerOfWhatBothHave) {
  Profile expected = newer_profile();
  expected.memory_bytes_per_s = 4e12;
  expected.contention = older_profile().contention;
  expected.tasks = {{linear_spec(64, 32, 16), {1000, 0.01}},
                    {add_spec(4096), {800, 0.1}},
                    {add_spec(8192), {1500, 0.1}}};
  expected.to_device = older_profile().to_device;
  expected.communication = {gather(1 << 20, 40'000), gather(1 << 21, 70'000)};
  EXPECT_EQ(merge_profiles(older_profile(), newer_profile()), expected);
}

TEST(MergeProfiles, TheResultCanBeReadBack) {
  const Profile merged = merge_profiles(older_profile(), newer_profile());
  EXPECT_EQ(parse_profile(print_profile(merged), "x"), merged);
}

TEST(MergeProfiles, OtherDevicesAreRefused) {
  const auto error_of_change = [](const std::function<void(Profile&)>& change) {
    Profile newer = newer_profile();
    change(newer);
    return message_of<DataError>([&] { merge_profiles(older_profile(), newer); });
  };
  EXPECT_THAT(error_of_change([](Profile& p) { p.device_kind = "h100"; }),
              AllOf(HasSubstr("device is \"h200\" and \"h100\"")));
  EXPECT_THAT(error_of_change([](Profile& p) { p.origin.software = "driver 2"; }),
              HasSubstr("origin.software is \"driver 1\" and \"driver 2\""));
  EXPECT_THAT(error_of_change([](Profile& p) { p.origin.device = "NVIDIA H200 NVL"; }),
              HasSubstr("origin.device"));
  EXPECT_THAT(error_of_change([](Profile& p) { p.origin.threads = 4; }),
              HasSubstr("origin.threads is \"0\" and \"4\""));
}

}  // namespace
}  // namespace braid
