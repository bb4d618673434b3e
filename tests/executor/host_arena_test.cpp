#include "backends/host_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

TEST(HostArena, IsZeroedAndAligned) {
  const HostArena arena(100'001, "test");
  EXPECT_EQ(arena.size_bytes(), 100'001);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % 256, 0u);
  EXPECT_TRUE(std::all_of(arena.data(), arena.data() + arena.size_bytes(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(HostArena, MovesAndMayBeEmpty) {
  HostArena arena(10, "test");
  std::byte* const data = arena.data();
  HostArena other(0, "nothing");
  EXPECT_EQ(other.data(), nullptr);
  other = std::move(arena);
  EXPECT_EQ(other.data(), data);
  const HostArena third(std::move(other));
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size_bytes(), 10);
}

TEST(HostArena, NamesWhatTheMemoryWasFor) {
  EXPECT_THAT(
      message_of<DeviceError>([] { HostArena(int64_t{1} << 60, "step buffers of rank 3"); }),
      ::testing::HasSubstr("for step buffers of rank 3: "));
  EXPECT_THROW(HostArena(-1, "test"), InternalError);
}

}  // namespace
}  // namespace braid
