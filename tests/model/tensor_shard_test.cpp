#include "model/tensor_shard.h"

#include "base/errors.h"
#include "base/expect_error.h"
#include "model/blocks/attention/heads.h"
#include "model/families.h"

namespace braid {
namespace {

const ModelSpec kGqa{.layers = 2,
                     .width = 64,
                     .heads = 12,
                     .kv_heads = 4,
                     .head_size = 8,
                     .ffn = 96,
                     .vocabulary = 1000};

std::string refusal(const ModelSpec& spec, const TensorShard& tensor, int64_t rows = 24) {
  return message_of<ConfigError>([&] { check_tensor_parallel(spec, tensor, rows); });
}

TEST(LocalHeads, OfOneRankAreTheModels) {
  const LocalHeads local = local_heads(kGqa, {});
  EXPECT_EQ(local.heads, 12);
  EXPECT_EQ(local.kv_heads, 4);
  EXPECT_EQ(local.kv_begin, 0);
  EXPECT_EQ(local.kv_sharers, 1);
  EXPECT_EQ(local_vocabulary(kGqa, {}).begin, 0);
  EXPECT_EQ(local_vocabulary(kGqa, {}).rows, kGqa.padded_vocabulary());
  EXPECT_EQ(local.qkv_rows(8), qkv_width(kGqa));
}

TEST(LocalHeads, SplitHeadsWithTheKeysThatTheyRead) {
  const LocalHeads local = local_heads(kGqa, {.size = 2, .index = 1});
  EXPECT_EQ(local.heads, 6);
  EXPECT_EQ(local.kv_heads, 2);
  EXPECT_EQ(local.kv_begin, 2);
  EXPECT_EQ(local.kv_sharers, 1);
}

// Head h reads key/value head h / (heads / kv_heads), wherever it lies.
TEST(LocalHeads, EveryQueryHeadFindsItsKeyHead) {
  for (const int64_t kv_heads : {1, 2, 3, 4, 6, 12}) {
    ModelSpec spec = kGqa;
    spec.kv_heads = kv_heads;
    for (const int64_t size : {1, 2, 3, 4, 6, 12}) {
      if (kv_heads % size != 0 && size % kv_heads != 0) {
        continue;
      }
      for (int64_t index = 0; index < size; ++index) {
        const LocalHeads local = local_heads(spec, {.size = size, .index = index});
        for (int64_t head = 0; head < local.heads; ++head) {
          const int64_t global = index * local.heads + head;
          EXPECT_EQ(local.kv_begin + head / (local.heads / local.kv_heads),
                    global / (spec.heads / kv_heads))
              << kv_heads << " kv heads over " << size << " ranks, head " << global;
        }
      }
    }
  }
}

TEST(LocalHeads, FewKeyHeadsAreSharedByNeighbours) {
  for (int64_t index = 0; index < 12; ++index) {
    const LocalHeads local = local_heads(kGqa, {.size = 12, .index = index});
    EXPECT_EQ(local.kv_heads, 1);
    EXPECT_EQ(local.kv_sharers, 3);
    EXPECT_EQ(local.kv_begin, index / 3);
    EXPECT_EQ(local.kv_sharer, index % 3);
  }
}

TEST(LocalVocabulary, PadsTheVocabularyToWhatComesOutEven) {
  EXPECT_EQ(padded_vocabulary(kGqa, 1), 1024);
  EXPECT_EQ(padded_vocabulary(kGqa, 4), 1024);
  EXPECT_EQ(padded_vocabulary(kGqa, 3), 3 * 384);
  EXPECT_EQ(padded_vocabulary(kGqa, 12), 3 * 384);
  EXPECT_EQ(padded_vocabulary(kGqa, 256), 1024);
  ModelSpec spec = kGqa;
  spec.kv_heads = 12;
  EXPECT_EQ(local_vocabulary(spec, {.size = 3, .index = 2}).begin, 2 * 384);
  EXPECT_EQ(local_vocabulary(spec, {.size = 3, .index = 2}).rows, 384);
}

TEST(LocalHeads, RefuseWhatIsNotInTheGroup) {
  EXPECT_THROW(local_heads(kGqa, {.size = 2, .index = 2}), InternalError);
  EXPECT_THROW(local_heads(kGqa, {.size = 5, .index = 0}), InternalError);
}

TEST(TensorParallel, FitsWhereHeadsAndFfnAreSplitEvenly) {
  for (const int64_t size : {1, 2, 4, 12}) {
    EXPECT_NO_THROW(check_tensor_parallel(kGqa, {.size = size}, 7));
    EXPECT_NO_THROW(check_tensor_parallel(kGqa, {.size = size, .sequence_parallel = true}, 24));
  }
}

TEST(TensorParallel, NamesTheRuleAndTheNearestThatFits) {
  EXPECT_EQ(refusal(kGqa, {.size = 0}), "parallel.tensor = 0: must be at least 1");
  EXPECT_EQ(refusal(kGqa, {.size = 5}),
            "parallel.tensor = 5: must divide model.heads = 12; the nearest that fits this model "
            "is 4");
  EXPECT_EQ(refusal(kGqa, {.size = 100}),
            "parallel.tensor = 100: must divide model.heads = 12; the nearest that fits this model "
            "is 12");
  EXPECT_EQ(refusal(kGqa, {.size = 6}),
            "parallel.tensor = 6: must divide model.kv_heads = 4 or be a multiple of it; the "
            "nearest that fits this model is 4");
  ModelSpec odd = kGqa;
  odd.ffn = 90;
  EXPECT_EQ(refusal(odd, {.size = 4}),
            "parallel.tensor = 4: must divide model.ffn = 90; the nearest that fits this model is "
            "2");
  EXPECT_EQ(
      refusal(find_preset("nemotron-h-8b").spec, {.size = 16}),
      "parallel.tensor = 16: must divide model.mamba_n_groups = 8; the nearest that fits this "
      "model is 8");
}

TEST(TensorParallel, SplitsRowsEvenlyUnderSequenceParallelism) {
  EXPECT_EQ(refusal(kGqa, {.size = 4, .sequence_parallel = true}, 10),
            "parallel.sequence_parallel = true: parallel.tensor = 4 must divide the 10 rows of a "
            "microbatch (train.microbatch * train.sequence / parallel.context), as it divides 8 "
            "and 12; change these or set parallel.sequence_parallel = false");
  EXPECT_NO_THROW(check_tensor_parallel(kGqa, {.size = 4}, 10));
  EXPECT_NO_THROW(check_tensor_parallel(kGqa, {.sequence_parallel = true}, 7));
}

}  // namespace
}  // namespace braid
