#include "model/context_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/expect_error.h"
#include "model/families.h"

namespace braid {
namespace {

using testing::HasSubstr;

std::vector<int64_t> positions(int64_t size, int64_t index, int64_t inner, int64_t sequence) {
  return ContextShard{.size = size, .index = index, .inner = inner}.position_list(sequence);
}

TEST(ContextShard, RingRanksHoldTheFirstAndTheLastChunk) {
  EXPECT_EQ(positions(2, 0, 1, 8), (std::vector<int64_t>{0, 1, 6, 7}));
  EXPECT_EQ(positions(2, 1, 1, 8), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(positions(3, 1, 1, 12), (std::vector<int64_t>{2, 3, 8, 9}));
}

TEST(ContextShard, RanksThatExchangeHeadsHoldARunOfEachHalf) {
  EXPECT_EQ(positions(3, 0, 3, 12), (std::vector<int64_t>{0, 1, 6, 7}));
  EXPECT_EQ(positions(3, 1, 3, 12), (std::vector<int64_t>{2, 3, 8, 9}));
  EXPECT_EQ(positions(3, 2, 3, 12), (std::vector<int64_t>{4, 5, 10, 11}));
  const ContextShard shard{.size = 3, .inner = 3};
  EXPECT_EQ(shard.runs(12), 2);
  EXPECT_EQ(shard.runs(9), 1) << "a half of three tokens per rank";
  EXPECT_EQ((ContextShard{.size = 4, .inner = 2}.runs(16)), 1) << "chunks of outer ranks";
  EXPECT_EQ(ContextShard{}.runs(16), 1);
}

TEST(ContextShard, OuterShardHoldsTheTokensOfItsInnerRanks) {
  EXPECT_EQ((ContextShard{.size = 6, .index = 4, .inner = 3}.outer_shard().position_list(24)),
            (positions(2, 1, 1, 24)));
  EXPECT_EQ((ContextShard{.size = 3, .index = 2, .inner = 3}.outer_shard().position_list(6)),
            (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
}

// Outer rank 0 of 2 holds 0..5 and 18..23; its three inner ranks 4 tokens each.
TEST(ContextShard, InnerRanksCutWhatTheOuterRankHolds) {
  EXPECT_EQ(positions(6, 0, 3, 24), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(positions(6, 1, 3, 24), (std::vector<int64_t>{4, 5, 18, 19}));
  EXPECT_EQ(positions(6, 2, 3, 24), (std::vector<int64_t>{20, 21, 22, 23}));
  EXPECT_EQ(positions(6, 3, 3, 24), (std::vector<int64_t>{6, 7, 8, 9}));
}

// What all ranks exchange heads for needs no second chunk; an even number of inner ranks cuts two
// chunks into equal runs, whatever their length.
TEST(ContextShard, SequencesNeedNoMoreThanEqualParts) {
  const auto multiple = [](int64_t size, int64_t inner) {
    return ContextShard{.size = size, .inner = inner}.sequence_multiple();
  };
  EXPECT_EQ(multiple(1, 1), 1);
  EXPECT_EQ(multiple(4, 1), 8);
  EXPECT_EQ(multiple(4, 4), 4);
  EXPECT_EQ(multiple(4, 2), 4);
  EXPECT_EQ(multiple(6, 3), 12);
  EXPECT_EQ(positions(3, 1, 3, 9), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(positions(4, 1, 2, 4), (std::vector<int64_t>{3}));
  EXPECT_EQ(positions(4, 2, 2, 12), (std::vector<int64_t>{3, 4, 5}));
}

TEST(ContextShard, OneRankHoldsPositionsInOrder) {
  const TokenPositions at = ContextShard{}.positions(5);
  EXPECT_EQ(at.of(0), 0);
  EXPECT_EQ(at.of(4), 4);
  EXPECT_EQ(positions(1, 0, 1, 3), (std::vector<int64_t>{0, 1, 2}));
}

TEST(ContextShard, EveryPositionIsOnOneRankAndChunksAscend) {
  for (const int64_t size : {1, 2, 3, 4, 6, 8, 12}) {
    for (int64_t inner = 1; inner <= size; ++inner) {
      if (size % inner != 0) {
        continue;
      }
      for (const int64_t multiples : {1, 2, 3, 5}) {
        const int64_t sequence =
            multiples * ContextShard{.size = size, .inner = inner}.sequence_multiple();
        std::vector<int64_t> all;
        for (int64_t index = 0; index < size; ++index) {
          const std::vector<int64_t> part = positions(size, index, inner, sequence);
          EXPECT_EQ(static_cast<int64_t>(part.size()), sequence / size);
          EXPECT_TRUE(std::is_sorted(part.begin(), part.end()));
          const ContextShard shard{.size = size, .index = index, .inner = inner};
          EXPECT_TRUE(shard.positions(sequence).fits(sequence / size));
          EXPECT_EQ(shard.positions(sequence).end(sequence / size), part.back() + 1);
          all.insert(all.end(), part.begin(), part.end());
        }
        std::sort(all.begin(), all.end());
        std::vector<int64_t> expected(static_cast<size_t>(sequence));
        std::iota(expected.begin(), expected.end(), 0);
        EXPECT_EQ(all, expected) << size << " ranks, inner " << inner;
      }
    }
  }
}

// Sections of all ranks, by their places, are the sequence.
TEST(ContextShard, SectionsAreRunsOfPositions) {
  for (const int64_t size : {1, 2, 3, 4, 6, 8, 12}) {
    for (int64_t inner = 1; inner <= size; ++inner) {
      if (size % inner != 0) {
        continue;
      }
      for (const int64_t multiples : {1, 2, 3, 4}) {
        const ContextShard any{.size = size, .inner = inner};
        const int64_t sequence = multiples * any.sequence_multiple();
        std::vector<bool> seen(static_cast<size_t>(any.sections(sequence).count()));
        for (int64_t index = 0; index < size; ++index) {
          const ContextShard shard{.size = size, .index = index, .inner = inner};
          const ContextSections sections = shard.sections(sequence);
          ASSERT_TRUE(sections.is_valid()) << size << " ranks, inner " << inner;
          EXPECT_EQ(sections.index, index);
          const int64_t rows = sequence / sections.count();
          std::vector<int64_t> expected;
          for (int64_t section = 0; section < sections.sections; ++section) {
            const int64_t place = sections.place(index, section);
            EXPECT_FALSE(seen.at(static_cast<size_t>(place)));
            seen[static_cast<size_t>(place)] = true;
            for (int64_t row = 0; row < rows; ++row) {
              expected.push_back(place * rows + row);
            }
          }
          EXPECT_EQ(shard.position_list(sequence), expected)
              << size << " ranks, inner " << inner << ", sequence " << sequence;
        }
      }
    }
  }
}

// The work of causal attention: a query at position p sees p + 1 keys.
TEST(ContextShard, ZigzagGivesAllRingRanksTheSameWork) {
  for (int64_t index = 0; index < 4; ++index) {
    const std::vector<int64_t> part = positions(4, index, 1, 32);
    EXPECT_EQ(std::accumulate(part.begin(), part.end(), int64_t{8}), 32 * 33 / 2 / 4);
  }
}

ModelSpec model(int64_t heads, int64_t kv_heads) {
  ModelSpec spec;
  spec.layers = 1;
  spec.heads = heads;
  spec.kv_heads = kv_heads;
  spec.ffn = 8;
  return spec;
}

struct Split {
  int64_t tensor = 1;
  int64_t size = 1;
  int64_t inner = 1;
  int64_t sequence = 16;
};

void check_split(const Split& split) {
  check_context_parallel(model(8, 4), {.size = split.tensor},
                         {.size = split.size, .inner = split.inner}, split.sequence);
}

std::string refusal(const Split& split) {
  return message_of<ConfigError>([&] { check_split(split); });
}

TEST(CheckContextParallel, TakesWhatFits) {
  EXPECT_NO_THROW(check_split({.sequence = 7}));
  EXPECT_NO_THROW(check_split({.size = 4, .inner = 4}));
  EXPECT_NO_THROW(check_split({.size = 4, .inner = 4, .sequence = 12}));
  EXPECT_NO_THROW(check_split({.size = 4, .inner = 2, .sequence = 20}));
  EXPECT_NO_THROW(check_split({.tensor = 2, .size = 4, .inner = 2}));
}

TEST(CheckContextParallel, NamesRuleAndNearestValues) {
  EXPECT_EQ(refusal({.size = 4, .sequence = 20}),
            "train.sequence = 20: must be a multiple of 2 * parallel.context = 8; the nearest are "
            "16 and 24");
  EXPECT_THAT(refusal({.size = 4, .sequence = 7}), HasSubstr("the nearest is 8"));
  EXPECT_EQ(refusal({.size = 4, .inner = 4, .sequence = 14}),
            "train.sequence = 14: must be a multiple of parallel.context = 4; the nearest are 12 "
            "and 16");
  EXPECT_EQ(refusal({.size = 4, .inner = 3}),
            "parallel.context_inner = 3: must divide parallel.context = 4; the nearest that fits "
            "this model is 2");
  EXPECT_EQ(refusal({.tensor = 2, .size = 4, .inner = 4}),
            "parallel.context = 4: so many context ranks exchange heads, and must divide the 4 "
            "query and 2 key/value heads of a tensor rank; set parallel.context_method = "
            "\"a2a+ring\" and parallel.context_inner = 2, or parallel.context_method = \"ring\"");
  EXPECT_EQ(refusal({.tensor = 4, .size = 4, .inner = 2}),
            "parallel.context_inner = 2: so many context ranks exchange heads, and must divide the "
            "2 query and 1 key/value heads of a tensor rank; set parallel.context_method = "
            "\"ring\"");
  EXPECT_THAT(refusal({.size = 0}), HasSubstr("must be at least 1"));
}

// Nemotron-H-8B has 8 groups of heads with states, and 8 key/value heads.
TEST(CheckContextParallel, StatesAreExchangedGroupByGroup) {
  const auto check_hybrid = [](int64_t tensor, const ContextShard& context) {
    check_context_parallel(find_preset("nemotron-h-8b").spec, {.size = tensor}, context, 96);
  };
  EXPECT_NO_THROW(check_hybrid(1, {.size = 8}));
  EXPECT_NO_THROW(check_hybrid(2, {.size = 4, .inner = 4}));
  EXPECT_EQ(message_of<ConfigError>([&] { check_hybrid(2, {.size = 6}); }),
            "parallel.context = 6: context ranks exchange heads of layers with \"mamba\", and must "
            "divide the 4 groups (model.mamba_n_groups) of a tensor rank; the nearest that does is "
            "4; or set parallel.mamba_context = \"states\"");
  EXPECT_EQ(message_of<ConfigError>([&] { check_hybrid(1, {.size = 4, .inner = 2}); }),
            "parallel.context_inner = 2: layers with \"mamba\" exchange heads among all 4 context "
            "ranks; set parallel.context_method = \"a2a\", \"ring\" or \"all_gather\", or "
            "parallel.mamba_context = \"states\"");
}

// Whatever the number of groups.
TEST(CheckContextParallel, StatesArePassedToSectionsThatTheConvolutionFitsInto) {
  ModelSpec spec = find_preset("nemotron-h-8b").spec;
  const auto check_hybrid = [&](const ContextShard& context, int64_t sequence) {
    ContextShard states = context;
    states.mamba = MambaContext::kStates;
    check_context_parallel(spec, {.size = 1}, states, sequence);
  };
  EXPECT_NO_THROW(check_hybrid({.size = 16}, 96));
  EXPECT_NO_THROW(check_hybrid({.size = 4, .inner = 2}, 12));
  EXPECT_NO_THROW(check_hybrid({.size = 1}, 2));
  EXPECT_EQ(
      message_of<ConfigError>([&] { check_hybrid({.size = 16}, 64); }),
      "train.sequence = 64: parallel.mamba_context = \"states\" needs runs of "
      "model.conv_kernel - 1 = 3 tokens at least, and parallel.context = 16 makes 32 runs; set "
      "train.sequence = 96");
  spec.conv_kernel = 1;
  EXPECT_EQ(
      message_of<ConfigError>([&] { check_hybrid({.size = 2}, 64); }),
      "parallel.mamba_context = \"states\": needs model.conv_kernel = 2 at least, which is 1; "
      "set parallel.mamba_context = \"heads\"");
}

}  // namespace
}  // namespace braid
