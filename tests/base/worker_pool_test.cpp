#include "base/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

struct Range {
  int64_t begin = -1;
  int64_t end = -1;
};

/// The range of each worker, {-1, -1} for workers without one.
std::vector<Range> ranges_of(WorkerPool& pool, int64_t count, int64_t grain) {
  std::vector<Range> ranges(static_cast<size_t>(pool.num_workers()));
  std::vector<int> calls(ranges.size());
  pool.run(count, grain, [&](int worker, int64_t begin, int64_t end) {
    ranges.at(static_cast<size_t>(worker)) = {begin, end};
    ++calls.at(static_cast<size_t>(worker));
  });
  for (const int number : calls) {
    EXPECT_LE(number, 1);
  }
  return ranges;
}

class WorkerPoolSplit : public ::testing::TestWithParam<int> {};

TEST_P(WorkerPoolSplit, CoversEverythingInWholeGrainsAsEvenlyAsPossible) {
  WorkerPool pool(GetParam());
  for (const int64_t count : {1, 2, 3, 7, 64, 97, 1000, 4096}) {
    for (const int64_t grain : {1, 2, 16, 100, 5000}) {
      int64_t next = 0;
      int64_t fewest = INT64_MAX;
      int64_t most = 0;
      for (const auto& [begin, end] : ranges_of(pool, count, grain)) {
        if (begin < 0) {
          continue;
        }
        EXPECT_EQ(begin, next);
        EXPECT_LT(begin, end);
        EXPECT_TRUE(end == count || (end - begin) % grain == 0) << count << " by " << grain;
        const int64_t grains = (end - begin + grain - 1) / grain;
        fewest = std::min(fewest, grains);
        most = std::max(most, grains);
        next = end;
      }
      EXPECT_EQ(next, count);
      EXPECT_LE(most - fewest, 1) << count << " by " << grain;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, WorkerPoolSplit, ::testing::Values(1, 2, 3, 5, 8));

TEST(WorkerPool, CallsNothingForNothing) {
  WorkerPool pool(3);
  pool.run(0, 1, [](int, int64_t, int64_t) { FAIL(); });
}

TEST(WorkerPool, MakesTheWorkOfAllPiecesVisibleOverManyRuns) {
  for (const int num_workers : {2, 4}) {
    WorkerPool pool(num_workers);
    std::vector<int64_t> values(100);
    for (int64_t run = 0; run < 2000; ++run) {
      pool.run(100, 1, [&](int, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          values[static_cast<size_t>(i)] += run;
        }
      });
      ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}),
                100 * run * (run + 1) / 2);
    }
  }
}

TEST(WorkerPool, RethrowsTheErrorOfTheFirstPieceAndStaysUsable) {
  WorkerPool pool(4);
  std::atomic<int> finished{0};
  const auto fail_in_two_pieces = [&](int worker, int64_t, int64_t) {
    if (worker == 1 || worker == 3) {
      throw std::runtime_error("piece " + std::to_string(worker));
    }
    ++finished;
  };
  EXPECT_EQ(message_of<std::runtime_error>([&] { pool.run(4, 1, fail_in_two_pieces); }), "piece 1");
  EXPECT_EQ(finished, 2);  // the error does not stop the other pieces half way
  EXPECT_EQ(ranges_of(pool, 4, 1)[3].end, 4);
}

TEST(WorkerPool, RefusesImpossibleSizes) {
  EXPECT_THROW(WorkerPool(0), InternalError);
  WorkerPool pool(2);
  EXPECT_THROW(pool.run(1, 0, [](int, int64_t, int64_t) {}), InternalError);
  EXPECT_THROW(pool.run(-1, 1, [](int, int64_t, int64_t) {}), InternalError);
}

}  // namespace
}  // namespace braid
