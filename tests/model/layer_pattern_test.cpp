#include "model/layer_pattern.h"

#include <gmock/gmock.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "model/blocks/registry.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LayerSpec kBoth;
constexpr LayerSpec kMixer{.feed_forward = nullptr};
constexpr LayerSpec kFeedForward{.mixer = nullptr};

std::string refusal(std::string_view text) {
  return message_of<ConfigError>([&] { LayerPattern::parse(text); });
}

TEST(LayerPattern, NumbersAreLayersOfTheUsualKind) {
  const LayerPattern layers = 3;
  EXPECT_EQ(layers, LayerPattern::parse("attention+mlp*3"));
  EXPECT_EQ(layers.text(), "attention+mlp*3");
  EXPECT_TRUE(layers.is_uniform());
  EXPECT_EQ(layers.num_blocks(), 6);
}

TEST(LayerPattern, NamesWithRepetitionsAreLayersInOrder) {
  const LayerPattern layers = LayerPattern::parse(" (attention mlp*2)*2, attention+mlp");
  const std::vector<LayerSpec> list(layers.begin(), layers.end());
  EXPECT_THAT(list, ElementsAre(kMixer, kFeedForward, kFeedForward, kMixer, kFeedForward,
                                kFeedForward, kBoth));
  EXPECT_EQ(layers.text(), "attention mlp*2 attention mlp*2 attention+mlp");
  EXPECT_EQ(LayerPattern::parse(layers.text()), layers);
  EXPECT_FALSE(layers.is_uniform());
  EXPECT_EQ(layers.num_blocks(), 8);
  EXPECT_THAT(layers.kinds(), ElementsAre(kMixer, kFeedForward, kBoth));
  EXPECT_THAT(layers.kind_indices(), ElementsAre(0, 1, 1, 0, 1, 1, 2));
  EXPECT_TRUE(layers.has(kAttentionBlock));
  EXPECT_FALSE(LayerPattern::parse("mlp").has(kAttentionBlock));
}

TEST(LayerPattern, BlocksAreReplacedWhereverTheyAre) {
  const LayerPattern layers = LayerPattern::parse("attention mlp attention+mlp sliding+moe");
  EXPECT_EQ(layers.replaced(kAttentionBlock, kSlidingBlock).text(),
            "sliding mlp sliding+mlp sliding+moe");
  EXPECT_EQ(layers.replaced(kMlpBlock, kMoeBlock).text(),
            "attention moe attention+moe sliding+moe");
  EXPECT_EQ(layers.replaced(kMlaBlock, kSlidingBlock), layers);
}

TEST(LayerPattern, LettersAreLayersOfOneBlockAsNemotronHHasThem) {
  EXPECT_EQ(LayerPattern::parse("M-M*E"), LayerPattern::parse("mamba mlp mamba attention moe"));
  EXPECT_EQ(LayerPattern::parse("M*").text(), "mamba attention");
  EXPECT_EQ(LayerPattern::parse(std::string(4096, 'M')).size(), 4096);
  EXPECT_THAT(refusal(std::string(4097, 'M')), HasSubstr("more than 4096 layers"));
  EXPECT_THAT(refusal("M-X"), HasSubstr("\"M-X\" is no block"));
  EXPECT_THAT(refusal("M*2"), HasSubstr("\"M\" is no block"));
}

TEST(LayerPattern, WhatIsNoPatternIsRefused) {
  EXPECT_EQ(
      refusal("attention+mlp mamba2"),
      "model.pattern = \"attention+mlp mamba2\": \"mamba2\" is no block that braid has here; "
      "a layer is a mixer (attention, sliding, mla, mamba), a feed-forward (mlp, moe), or both as "
      "\"MIXER+FEED_FORWARD\"");
  EXPECT_THAT(refusal("moe+mlp"), HasSubstr("\"moe\" is no block that braid has here"));
  EXPECT_THAT(refusal("mlp+attention"), HasSubstr("\"mlp\" is no block that braid has here"));
  EXPECT_THAT(refusal("attention+mlp+mlp"), HasSubstr("\"mlp+mlp\" is no block"));
  EXPECT_THAT(refusal("attention+"), HasSubstr("\"\" is no block"));
  EXPECT_THAT(refusal("mlp*"), HasSubstr("\"*\" needs a number from 1 to 4096 behind it"));
  EXPECT_THAT(refusal("mlp*0"), HasSubstr("\"*\" needs a number"));
  EXPECT_THAT(refusal("(mlp"), HasSubstr("\"(\" without \")\""));
  EXPECT_THAT(refusal("mlp)"), HasSubstr("\"\" is no block"));
  EXPECT_THAT(refusal("(mlp (mlp)*2)*2"), HasSubstr("a group inside a group"));
  EXPECT_THAT(refusal("mlp*4000 mlp*97"), HasSubstr("more than 4096 layers"));
}

TEST(LayerPattern, ASampleHasOfEachKindItsShare) {
  const LayerPattern layers = LayerPattern::parse("(attention mlp)*12 attention+mlp");
  const LayerPattern sample = layers.sample(8);
  EXPECT_EQ(sample.size(), 8);
  EXPECT_EQ(sample.text(), "attention mlp attention mlp attention*2 mlp attention+mlp");
  EXPECT_EQ(layers.sample(100), layers);
  EXPECT_EQ(LayerPattern(32).sample(8), LayerPattern(8));
  EXPECT_EQ(layers.sample(1).kinds().size(), 3u);  // no kind is left out
}

}  // namespace
}  // namespace braid
