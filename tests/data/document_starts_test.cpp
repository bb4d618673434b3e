#include "data/document_starts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/expect_error.h"
#include "data/batch_loader.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

// The token behind an end begins a document, the end itself does not, and neither does a token of
// the next sequence wait for one. Values of Megatron-LM's get_ltor_masks_and_position_ids:
// position_ids are positions minus starts.
TEST(DocumentStarts, FollowEndsOfDocumentsAndSequences) {
  constexpr int32_t kEnd = 0;
  EXPECT_THAT(document_starts(std::vector<int32_t>{5, 0, 6, 7, 0, 0, 8, 9}, 8, kEnd),
              ElementsAre(0, 0, 2, 2, 2, 5, 6, 6));
  EXPECT_THAT(document_starts(std::vector<int32_t>{5, 6, 7, 0, 5, 0, 0, 6}, 4, kEnd),
              ElementsAre(0, 0, 0, 0, 0, 0, 2, 3));
}

TEST(DocumentStarts, OfABatchAreThoseOfItsPositions) {
  class Source final : public SampleSource {
    int64_t sequence_tokens() const override { return 6; }
    int64_t num_samples() const override { return 2; }
    void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t>) const override {
      std::ranges::fill(tokens, 1);
      tokens[static_cast<size_t>(2 + sample)] = 9;  // the end
    }
  };
  const Source source;
  BatchLoader loader(source, {.shape = {.num_ranks = 2}, .eod = 9});
  const std::optional<StepBatch> batch = loader.next();
  ASSERT_TRUE(batch);
  const std::vector<int64_t> positions = {0, 2, 3, 5};
  EXPECT_THAT(batch->document_starts_at(0, 0, positions), ElementsAre(0, 0, 3, 3));
  EXPECT_THAT(batch->document_starts_at(1, 0, positions), ElementsAre(0, 0, 0, 4));
}

}  // namespace
}  // namespace braid
