#include "backends/cuda/hardware_queues.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

Program program_with(std::initializer_list<const char*> streams) {
  Program program;
  program.rank = 3;
  for (const char* const name : streams) {
    program.streams.push_back({.name = name, .kind = StreamKind::kComm});
  }
  return program;
}

TEST(HardwareQueues, AreSharedWhereStreamsAreMore) {
  const std::vector<Program> programs{program_with({"a", "b", "c", "d", "e", "f"})};
  EXPECT_EQ(why_queues_are_shared(programs, std::nullopt), "");  // with two of the executor: 8
  EXPECT_EQ(why_queues_are_shared(programs, "8"), "");
  EXPECT_EQ(why_queues_are_shared(programs, "7"),
            "rank 3 has 8 streams and 7 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS): set it to "
            "32, or leave it unset");
  EXPECT_NE(why_queues_are_shared(programs, "1"), "");
}

TEST(HardwareQueues, ProgramsShareStreamsOfEqualName) {
  const std::vector<Program> same{program_with({"a", "b", "c"}), program_with({"c", "b", "a"})};
  EXPECT_EQ(why_queues_are_shared(same, "5"), "");
  const std::vector<Program> other{program_with({"a", "b", "c"}), program_with({"d", "e", "f"})};
  EXPECT_NE(why_queues_are_shared(other, "5"), "");
}

TEST(HardwareQueues, ARankThatSharesItsGpuMustHaveItsOwn) {
  const std::vector<Program> programs{program_with({"a", "b", "c"})};
  EXPECT_NO_THROW(require_own_queues(programs, std::nullopt));
  EXPECT_EQ(message_of<ConfigError>([&] { require_own_queues(programs, "1"); }),
            "runtime.ranks_per_gpu: ranks that share a GPU communicate by copies, for which each "
            "stream must have a hardware queue of its own, and rank 3 has 5 streams and 1 hardware "
            "queues (CUDA_DEVICE_MAX_CONNECTIONS): set it to 32, or leave it unset");
}

TEST(HardwareQueues, AreAskedForAsManyAsThereAreStreamsUnlessTheUserHas) {
  constexpr const char* kVariable = "CUDA_DEVICE_MAX_CONNECTIONS";
  const std::string before = getenv(kVariable) == nullptr ? "" : getenv(kVariable);
  const auto asked = [&](size_t num_streams) {
    unsetenv(kVariable);
    ask_for_hardware_queues(num_streams);
    return std::string(getenv(kVariable));
  };
  EXPECT_EQ(asked(3), "12");
  EXPECT_EQ(asked(14), "16");
  EXPECT_EQ(asked(30), "32");
  EXPECT_EQ(asked(1000), "32");
  setenv(kVariable, "7", 1);
  ask_for_hardware_queues(3);
  EXPECT_EQ(std::string(getenv(kVariable)), "7");
  before.empty() ? unsetenv(kVariable) : setenv(kVariable, before.c_str(), 1);
}

TEST(HardwareQueues, AreAtMost32) {
  Program many;
  for (int i = 0; i < 31; ++i) {
    many.streams.push_back({.name = fmt::format("s{}", i), .kind = StreamKind::kComm});
  }
  const std::vector<Program> programs{many};
  EXPECT_EQ(why_queues_are_shared(programs, "64"),
            "rank 0 has 33 streams and 32 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS): a device "
            "has at most 32");
}

TEST(HardwareQueues, WhatIsNoNumberIsTheDefault) {
  const std::vector<Program> seven{program_with({"a", "b", "c", "d", "e", "f", "g"})};
  for (const char* const asked : {"", "many", "0", "-3"}) {
    EXPECT_NE(why_queues_are_shared(seven, asked), "") << asked;
  }
}

}  // namespace
}  // namespace braid
