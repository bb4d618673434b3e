#include "runtime/batch_inputs.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/errors.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

/// Token t of sample s is 100 s + t, and its label is ignored, or one more.
class NumberedSequences final : public SampleSource {
 public:
  int64_t sequence_tokens() const override { return 8; }
  int64_t num_samples() const override { return 100; }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const override {
    std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(100 * sample));
    std::iota(labels.begin(), labels.end(), static_cast<int32_t>(100 * sample + 1));
    labels[5] = -1;
  }
};

/// Two data ranks of two context ranks, two microbatches of one sequence of 8.
RunSpec run_of_four_ranks(int64_t mtp_depth = 0) {
  RunConfig config = small_config();
  config.train.sequence = 8;
  config.train.microbatch = 1;
  config.train.global_batch = 4;
  config.parallel.ranks = 4;
  config.parallel.context = 2;
  if (mtp_depth > 0) {
    config.model.mtp_depth = mtp_depth;
  }
  validate(config);
  return resolve_run(resolved(config), 1000);
}

StepBatch numbered_batch() {
  const NumberedSequences source;
  BatchLoader loader(source, {.shape = {.num_ranks = 2, .num_microbatches = 2, .microbatch = 1}});
  return *loader.next();
}

using Numbers = std::vector<int32_t>;

// A ring gives each context rank the first and the last part of a sequence that are as far from
// its ends.
TEST(BatchInputs, AreARanksOwnPositionsOfItsOwnSequences) {
  const RunSpec run = run_of_four_ranks();
  const StepBatch batch = numbered_batch();
  const auto tokens = [&](int rank, int64_t microbatch) {
    return BatchInputs(run, rank, batch).tokens(microbatch);
  };
  EXPECT_EQ(tokens(0, 0), (Numbers{0, 1, 6, 7}));
  EXPECT_EQ(tokens(1, 0), (Numbers{2, 3, 4, 5}));
  EXPECT_EQ(tokens(2, 0), (Numbers{100, 101, 106, 107}));
  EXPECT_EQ(tokens(3, 1), (Numbers{302, 303, 304, 305}));
  EXPECT_EQ(BatchInputs(run, 1, batch).labels(0), (Numbers{3, 4, 5, -1}));
}

TEST(BatchInputs, FillWhatTheRankReads) {
  const RunSpec run = run_of_four_ranks();
  const StepBatch batch = numbered_batch();
  Numbers labels(8, -7);
  BatchInputs(run, 1, batch).fill({.labels = labels});
  EXPECT_EQ(labels, (Numbers{3, 4, 5, -1, 203, 204, 205, -1}));
  Numbers tokens(7);
  EXPECT_THROW(BatchInputs(run, 1, batch).fill({.tokens = tokens}), InternalError);
}

// Depth k reads the token that is k behind, and predicts the one behind that.
TEST(BatchInputs, ShiftSequencesForMultiTokenPrediction) {
  const RunSpec run = run_of_four_ranks(/*mtp_depth=*/2);
  const StepBatch batch = numbered_batch();
  Numbers tokens(16, -7);
  Numbers labels(16, -7);
  BatchInputs(run, 2, batch).fill({.mtp_tokens = tokens, .mtp_labels = labels});
  EXPECT_EQ(tokens, (Numbers{101, 102, 107, 0, 301, 302, 307, 0,  //
                             102, 103, 0, 0, 302, 303, 0, 0}));
  EXPECT_EQ(labels, (Numbers{102, 103, 108, -1, 302, 303, 308, -1,  //
                             103, 104, -1, -1, 303, 304, -1, -1}));
  EXPECT_THROW(BatchInputs(run, 2, batch)
                   .fill({.mtp_tokens = tokens, .mtp_labels = std::span(labels).first(12)}),
               InternalError);
}

TEST(BatchInputs, LossesAreMeansOverLabelsOfAllRanks) {
  const StepBatch batch = numbered_batch();
  EXPECT_EQ(loss_scale_of(batch), 1.0f / 28);
  EXPECT_EQ(loss_scale_of(batch, 2), 1.0f / 20);
  EXPECT_EQ(loss_scale_of(batch, 8), 1.0f);  // there are none
}

}  // namespace
}  // namespace braid
