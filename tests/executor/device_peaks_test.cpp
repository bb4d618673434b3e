#include "backends/device_peaks.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(DevicePeaks, AreThoseOfTheDataSheet) {
  const DevicePeaks h200 = gpu_peaks("NVIDIA H200");
  EXPECT_EQ(h200.name, "NVIDIA H200");
  EXPECT_DOUBLE_EQ(h200.flops_per_s, 989.4e12);
  EXPECT_DOUBLE_EQ(h200.bytes_per_s, 4.8e12);
  EXPECT_LT(gpu_peaks("NVIDIA H200 NVL").flops_per_s, h200.flops_per_s);
  EXPECT_DOUBLE_EQ(gpu_peaks("NVIDIA H100 80GB HBM3").bytes_per_s, 3.35e12);
}

TEST(DevicePeaks, OfOtherDevicesAreNotKnown) {
  for (const char* name : {"NVIDIA H20", "NVIDIA H100 MIG 1g.10gb", "Tesla T4", ""}) {
    EXPECT_EQ(gpu_peaks(name), (DevicePeaks{.name = name})) << name;
  }
}

}  // namespace
}  // namespace braid
