#include "base/parallel_for.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace braid {
namespace {

TEST(ParallelFor, DoesEverythingOnce) {
  for (const int threads : {0, 1, 3, 64}) {
    std::vector<std::atomic<int>> calls(37);
    parallel_for(calls.size(), threads, [&](size_t index) { ++calls[index]; });
    for (const std::atomic<int>& count : calls) {
      EXPECT_EQ(count, 1);
    }
  }
  parallel_for(0, 2, [](size_t) { FAIL(); });
}

TEST(ParallelFor, ThrowsOnWhatWasThrown) {
  const auto fail = [](size_t index) {
    if (index == 5) {
      throw std::runtime_error("fifth");
    }
  };
  for (const int threads : {1, 4}) {
    try {
      parallel_for(20, threads, fail);
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()), "fifth");
    }
  }
}

}  // namespace
}  // namespace braid
