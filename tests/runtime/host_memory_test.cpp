#include "runtime/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>

#include "base/temp_folder.h"

namespace braid {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

class HostMemory : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    write_test_file(path.string(), text);
  }
  int64_t free_bytes() const {
    return free_host_bytes({.meminfo = folder_ / "meminfo", .cgroup = folder_ / "cgroup"});
  }

  TempFolder folder_;
};

TEST_F(HostMemory, IsWhatTheKernelSaysIsAvailable) {
  write("meminfo", "MemTotal:       16777216 kB\nMemFree:  1048576 kB\nMemAvailable: 8388608 kB\n");
  EXPECT_EQ(free_bytes(), 8 * kGiB);
  write("cgroup/memory.max", "max\n");
  write("cgroup/memory.current", "1073741824\n");
  EXPECT_EQ(free_bytes(), 8 * kGiB);
}

TEST_F(HostMemory, IsLessInALimitedContainerButForFiles) {
  write("meminfo", "MemAvailable: 8388608 kB\n");
  write("cgroup/memory.max", std::to_string(4 * kGiB));
  write("cgroup/memory.current", std::to_string(3 * kGiB));
  EXPECT_EQ(free_bytes(), kGiB);
  write("cgroup/memory.stat", "anon 1\nfile " + std::to_string(2 * kGiB) + "\nkernel 7\n");
  EXPECT_EQ(free_bytes(), 3 * kGiB);
  write("cgroup/memory.current", std::to_string(5 * kGiB));  // of a limit that was lowered
  write("cgroup/memory.stat", "anon 1\n");
  EXPECT_EQ(free_bytes(), 0);
}

TEST_F(HostMemory, ReadsTheFirstVersionOfControlGroupsToo) {
  write("meminfo", "MemAvailable: 8388608 kB\n");
  write("cgroup/memory/memory.limit_in_bytes", std::to_string(4 * kGiB));
  write("cgroup/memory/memory.usage_in_bytes", std::to_string(kGiB));
  EXPECT_EQ(free_bytes(), 3 * kGiB);
}

TEST_F(HostMemory, IsUnlimitedWhereNothingIsKnown) {
  EXPECT_EQ(free_bytes(), std::numeric_limits<int64_t>::max());
}

TEST(HostMemoryHere, ThereIsSome) {
  EXPECT_GT(free_host_bytes(), int64_t{1} << 24);
  EXPECT_GE(host_memory_bytes(), free_host_bytes());
}

}  // namespace
}  // namespace braid
