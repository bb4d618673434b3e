#include "data/batch_loader.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <array>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Sample i reads tokens 10 i, 10 i + 1, ...; from `fail_at` on, reading is an error.
class CountingSource : public SampleSource {
 public:
  explicit CountingSource(int64_t num_samples, int64_t fail_at = INT64_MAX)
      : num_samples_(num_samples), fail_at_(fail_at) {}

  int64_t sequence_tokens() const override { return 3; }
  int64_t num_samples() const override { return num_samples_; }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const override {
    if (sample >= fail_at_) {
      throw_data_error("sample {} is bad", sample);
    }
    num_reads.fetch_add(1);
    std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(10 * sample));
    std::iota(labels.begin(), labels.end(), static_cast<int32_t>(10 * sample + 1));
  }

  mutable std::atomic<int64_t> num_reads = 0;

 private:
  int64_t num_samples_;
  int64_t fail_at_;
};

/// The samples of a batch in the order ranks, microbatches, rows.
std::vector<int32_t> samples_of(const StepBatch& batch) {
  std::vector<int32_t> samples;
  for (int64_t rank = batch.rank_begin(); rank < batch.rank_end(); ++rank) {
    for (int64_t m = 0; m < batch.shape().num_microbatches; ++m) {
      const std::span<const int32_t> tokens = batch.tokens(rank, m);
      const std::span<const int32_t> labels = batch.labels(rank, m);
      for (size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(labels[i], tokens[i] + 1);
        if (i % 3 == 0) {
          samples.push_back(tokens[i] / 10);
        }
      }
    }
  }
  return samples;
}

TEST(BatchLoader, DealsSamplesAsMegatronsSingleSamplerDoes) {
  const CountingSource source(24);
  BatchLoader loader(source, {.shape = {.num_ranks = 2, .num_microbatches = 3, .microbatch = 2}});
  EXPECT_EQ(loader.num_steps(), 2);
  const StepBatch first = loader.next().value();
  EXPECT_EQ(first.consumed_samples(), 0);
  EXPECT_EQ(first.tokens(0, 0).size(), 6u);
  EXPECT_THAT(first.tokens(1, 0), ElementsAre(20, 21, 22, 30, 31, 32));
  EXPECT_THAT(first.labels(1, 0), ElementsAre(21, 22, 23, 31, 32, 33));
  EXPECT_THAT(samples_of(first), ElementsAre(0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11));
  const StepBatch second = loader.next().value();
  EXPECT_EQ(second.consumed_samples(), 12);
  EXPECT_THAT(samples_of(second), ElementsAre(12, 13, 16, 17, 20, 21, 14, 15, 18, 19, 22, 23));
  EXPECT_FALSE(loader.next().has_value());
  EXPECT_FALSE(loader.next().has_value());
}

TEST(BatchLoader, TakesTheSameSamplesPerStepForAnyNumberOfRanks) {
  const CountingSource source(48);
  for (const int64_t num_ranks : {1, 2, 3, 4, 6, 12}) {
    BatchLoader loader(source,
                       {.shape = {.num_ranks = num_ranks, .num_microbatches = 12 / num_ranks}});
    for (int32_t step = 0; step < 4; ++step) {
      std::vector<int32_t> samples = samples_of(loader.next().value());
      std::sort(samples.begin(), samples.end());
      std::vector<int32_t> expected(12);
      std::iota(expected.begin(), expected.end(), 12 * step);
      EXPECT_EQ(samples, expected) << num_ranks;
    }
  }
}

TEST(BatchLoader, ResumesWhereItStopped) {
  const CountingSource source(40);
  const BatchShape shape = {.num_ranks = 2, .num_microbatches = 2, .microbatch = 1};
  BatchLoader whole(source, {.shape = shape});
  for (int64_t step = 0; step < 10; ++step) {
    const std::vector<int32_t> expected = samples_of(whole.next().value());
    BatchLoader resumed(source, {.shape = shape, .consumed_samples = step * 4});
    EXPECT_EQ(resumed.num_steps(), 10 - step);
    EXPECT_EQ(samples_of(resumed.next().value()), expected);
  }
  BatchLoader at_end(source, {.shape = shape, .consumed_samples = 40});
  EXPECT_FALSE(at_end.next().has_value());
  BatchLoader past_end(source, {.shape = shape, .consumed_samples = 4000});
  EXPECT_EQ(past_end.num_steps(), 0);
  EXPECT_FALSE(past_end.next().has_value());
}

TEST(BatchLoader, DropsTheLastPartialStep) {
  const CountingSource source(11);
  BatchLoader loader(source, {.shape = {.num_ranks = 2, .microbatch = 2}});
  EXPECT_EQ(loader.num_steps(), 2);
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_FALSE(loader.next().has_value());
}

TEST(BatchLoader, ReadsOnlyTheRanksOfThisProcess) {
  const CountingSource source(24);
  const BatchShape shape = {.num_ranks = 4, .num_microbatches = 2, .microbatch = 3};
  BatchLoader loader(source, {.shape = shape, .rank_begin = 1, .rank_end = 3});
  const StepBatch batch = loader.next().value();
  EXPECT_THAT(samples_of(batch), ElementsAre(3, 4, 5, 15, 16, 17, 6, 7, 8, 18, 19, 20));
  EXPECT_THROW(batch.tokens(0, 0), InternalError);
  EXPECT_THROW(batch.tokens(1, 2), InternalError);
  EXPECT_FALSE(loader.next().has_value());
  EXPECT_EQ(source.num_reads, 12);
}

TEST(BatchLoader, HandsOutTheStepsBeforeAnErrorAndThenTheErrorAgainAndAgain) {
  const CountingSource source(100, 5);
  BatchLoader loader(source, {.shape = {.microbatch = 2}, .prefetch_steps = 4});
  EXPECT_THAT(samples_of(loader.next().value()), ElementsAre(0, 1));
  EXPECT_THAT(samples_of(loader.next().value()), ElementsAre(2, 3));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(message_of<DataError>([&] { loader.next(); }), HasSubstr("sample 5 is bad"));
  }
}

/// Blocks its first read until told to go on, and counts the reads.
class GatedSource : public CountingSource {
 public:
  using CountingSource::CountingSource;
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const override {
    std::unique_lock lock(mutex);
    reading = true;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
    CountingSource::read(sample, tokens, labels);
  }

  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  mutable bool reading = false;
  mutable bool open = false;
};

TEST(BatchLoader, StopsWithinOneSampleWhenDestroyed) {
  const GatedSource source(int64_t{1} << 40);
  std::thread opener;
  {
    BatchLoader loader(source, {.shape = {.microbatch = 1'000}});
    std::unique_lock lock(source.mutex);
    source.changed.wait(lock, [&] { return source.reading; });
    // Opened only when the destructor below surely runs or is about to: it needs the reader, which
    // waits here.
    opener = std::thread([&source] {
      const std::lock_guard inner(source.mutex);
      source.open = true;
      source.changed.notify_all();
    });
  }
  opener.join();
  // Two prefetched steps and the one in progress at most, however the threads interleave.
  EXPECT_LE(source.num_reads, 3'000);
}

TEST(BatchLoader, ReadsAheadNoFurtherThanAsked) {
  const CountingSource source(1'000);
  const int64_t prefetch_steps = 3;
  BatchLoader loader(source, {.shape = {.microbatch = 10}, .prefetch_steps = prefetch_steps});
  for (int64_t step = 1; step <= 50; ++step) {
    loader.next();
    // Handed out, waiting in the queue, and the one that the reader holds.
    EXPECT_LE(source.num_reads, (step + prefetch_steps + 1) * 10);
  }
}

TEST(BatchLoader, RefusesImpossibleShapes) {
  const CountingSource source(10);
  EXPECT_THROW(BatchLoader(source, {.shape = {.num_ranks = 0}}), ConfigError);
  EXPECT_THROW(BatchLoader(source, {.shape = {.num_microbatches = 0}}), ConfigError);
  EXPECT_THAT(message_of<ConfigError>([&] { BatchLoader(source, {.shape = {.microbatch = -3}}); }),
              HasSubstr("-3 samples"));
  EXPECT_THROW(BatchLoader(source, {.rank_begin = 1, .rank_end = 1}), InternalError);
  EXPECT_THROW(BatchLoader(source, {.rank_end = 2}), InternalError);
}

TEST(TakePositions, OfEverySequence) {
  const std::vector<int32_t> values = {10, 11, 12, 13, 20, 21, 22, 23};
  EXPECT_THAT(take_positions(values, 4, std::array<int64_t, 2>{0, 3}), ElementsAre(10, 13, 20, 23));
  EXPECT_THAT(take_positions(values, 4, std::array<int64_t, 2>{2, 1}), ElementsAre(12, 11, 22, 21));
  EXPECT_THROW(take_positions(values, 3, std::array<int64_t, 1>{0}), InternalError);
  EXPECT_THROW(take_positions(values, 4, std::array<int64_t, 1>{4}), InternalError);
}

TEST(ShiftSequences, MovesNothingFromOneSequenceToAnother) {
  const std::vector<int32_t> values{10, 11, 12, 13, 20, 21, 22, 23};
  EXPECT_THAT(shift_sequences(values, 4, 1, -1), ElementsAre(11, 12, 13, -1, 21, 22, 23, -1));
  EXPECT_THAT(shift_sequences(values, 4, 3, 0), ElementsAre(13, 0, 0, 0, 23, 0, 0, 0));
  EXPECT_THAT(shift_sequences(values, 4, 5, 7), ElementsAre(7, 7, 7, 7, 7, 7, 7, 7));
}

TEST(CountLabels, LeavesOutIgnoredOnesAndThoseAtTheBeginning) {
  const std::vector<int32_t> labels{1, -1, 3, 4, 5, 6, -1, 8};
  EXPECT_EQ(count_labels(labels, 4, 0), 6);
  EXPECT_EQ(count_labels(labels, 4, 1), 4);
  EXPECT_EQ(count_labels(labels, 4, 2), 3);
}

TEST(BatchLoader, GivesRanksTheirPositionsOfTokensAndLabels) {
  const CountingSource source(8);
  BatchLoader loader(source, {.shape = {.num_ranks = 2, .num_microbatches = 1, .microbatch = 2}});
  const StepBatch batch = loader.next().value();
  const std::array<int64_t, 2> positions{0, 2};
  EXPECT_THAT(batch.tokens_at(1, 0, positions), ElementsAre(20, 22, 30, 32));
  EXPECT_THAT(batch.labels_at(1, 0, positions), ElementsAre(21, 23, 31, 33));
}

}  // namespace
}  // namespace braid
