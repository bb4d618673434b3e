#include "sim/end_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace braid {
namespace {

TEST(EndQueue, GivesWhatEndsNext) {
  EndQueue queue;
  queue.reset(4);
  queue.set(0, 30);
  queue.set(1, 10);
  queue.set(2, 20);
  EXPECT_EQ(queue.next_end_ns(), 10);
  queue.set(1, 25);  // later
  queue.set(0, 5);   // sooner
  EXPECT_EQ(queue.pop(), 0u);
  EXPECT_EQ(queue.pop(), 2u);
  queue.set(3, 1);
  EXPECT_EQ(queue.pop(), 3u);
  EXPECT_EQ(queue.pop(), 1u);
  EXPECT_TRUE(queue.empty());
}

TEST(EndQueue, AgreesWithAMapAfterAnyChanges) {
  constexpr uint32_t kThings = 50;
  std::mt19937 random(7);
  EndQueue queue;
  queue.reset(kThings);
  std::map<uint32_t, int64_t> ends;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 3 != 0 || ends.empty()) {
      const uint32_t thing = random() % kThings;
      ends[thing] = static_cast<int64_t>(random() % 1000);
      queue.set(thing, ends[thing]);
      continue;
    }
    int64_t least = INT64_MAX;
    for (const auto& [thing, end_ns] : ends) {
      least = std::min(least, end_ns);
    }
    ASSERT_EQ(queue.next_end_ns(), least);
    const uint32_t thing = queue.pop();
    ASSERT_EQ(ends.at(thing), least);
    ends.erase(thing);
  }
}

}  // namespace
}  // namespace braid
