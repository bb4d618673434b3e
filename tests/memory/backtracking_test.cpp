#include "memory/backtracking.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "memory/live_ranges.h"
#include "memory/programs.h"

namespace braid {
namespace {

/// A program, and the live ranges of its buffers.
struct Ranged {
  explicit Ranged(Program of) : program(std::move(of)), order(program), ranges(program, order) {
    for (const Buffer& buffer : program.buffers) {
      sizes_bytes.push_back(buffer.size_bytes());
    }
  }

  Program program;
  TaskOrder order;
  LiveRanges ranges;
  std::vector<int64_t> sizes_bytes;
};

/// Each buffer lives beside the one before and the one behind it.
Program chain(const std::vector<int64_t>& sizes) {
  ProgramWriter writer;
  const StreamId stream = writer.stream(StreamKind::kCompute);
  std::vector<BufferId> buffers;
  for (const int64_t size : sizes) {
    buffers.push_back(writer.buffer(size));
    if (buffers.size() > 1) {
      writer.task(stream, {buffers[buffers.size() - 2]}, {buffers.back()});
    }
  }
  return writer.take();
}

int64_t overlapping_pairs(const Ranged& ranged, const Packing& packing) {
  int64_t pairs = 0;
  for (size_t a = 0; a < ranged.sizes_bytes.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (ranged.ranges.is_used(a) && ranged.ranges.is_used(b) && ranged.ranges.interfere(a, b)) {
        pairs += packing.offset_bytes[a] < packing.offset_bytes[b] + ranged.sizes_bytes[b] &&
                 packing.offset_bytes[b] < packing.offset_bytes[a] + ranged.sizes_bytes[a];
      }
    }
  }
  return pairs;
}

// Two at a time fit into the sum of the largest pair: one from below, the next from above.
TEST(Backtracking, PacksNeighboursIntoTheSumOfTheLargestTwo) {
  const Ranged ranged(chain({300, 700, 500, 600, 400, 800, 200, 500, 900, 100, 700}));
  const std::optional<Packing> packing = pack_by_backtracking(
      ranged.ranges, ranged.sizes_bytes,
      {.bound_bytes = 1400, .target_bytes = 1400, .limit_bytes = 5000, .max_steps = 10'000});
  ASSERT_TRUE(packing);
  EXPECT_EQ(packing->arena_bytes, 1400);
  EXPECT_EQ(overlapping_pairs(ranged, *packing), 0);
}

TEST(Backtracking, FindsNothingThatIsNotBelowTheLimit) {
  const Ranged ranged(chain({300, 700, 500}));
  EXPECT_FALSE(pack_by_backtracking(
      ranged.ranges, ranged.sizes_bytes,
      {.bound_bytes = 1200, .target_bytes = 1200, .limit_bytes = 1200, .max_steps = 1000}));
  EXPECT_FALSE(pack_by_backtracking(
      ranged.ranges, ranged.sizes_bytes,
      {.bound_bytes = 1200, .target_bytes = 1200, .limit_bytes = 2000, .max_steps = 0}));
}

TEST(Backtracking, PacksRandomProgramsWithoutOverlapsAtMultiplesOfTheirSizes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Ranged ranged(random_small_program(seed));
    for (int64_t& size : ranged.sizes_bytes) {
      size *= 64;
    }
    const int64_t sum =
        std::accumulate(ranged.sizes_bytes.begin(), ranged.sizes_bytes.end(), int64_t{0});
    const auto pack = [&] {
      return pack_by_backtracking(ranged.ranges, ranged.sizes_bytes,
                                  {.bound_bytes = sum / 4,
                                   .target_bytes = sum / 3,
                                   .limit_bytes = sum + 64,
                                   .max_steps = 2000});
    };
    const std::optional<Packing> packing = pack();
    if (packing) {
      EXPECT_EQ(overlapping_pairs(ranged, *packing), 0);
      for (const int64_t offset : packing->offset_bytes) {
        EXPECT_EQ(offset % 64, 0);
      }
      EXPECT_EQ(packing->offset_bytes, pack()->offset_bytes);
    }
  }
}

}  // namespace
}  // namespace braid
