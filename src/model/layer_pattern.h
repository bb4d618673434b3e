#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

struct BlockDefinition;  // model/blocks/block.h

// Of the usual layer. All kinds: blocks/registry.h.
extern const BlockDefinition kAttentionBlock;
extern const BlockDefinition kSlidingBlock;
extern const BlockDefinition kMambaBlock;
extern const BlockDefinition kMlaBlock;
extern const BlockDefinition kMlpBlock;
extern const BlockDefinition kMoeBlock;

/// One kind of layer: a block that mixes tokens, a block that works on each token alone, or both,
/// in this order. Each block follows a norm and adds to the residual stream. Null: no such block.
struct LayerSpec {
  const BlockDefinition* mixer = &kAttentionBlock;
  const BlockDefinition* feed_forward = &kMlpBlock;

  int num_blocks() const { return (mixer != nullptr ? 1 : 0) + (feed_forward != nullptr ? 1 : 0); }

  template <class Visit>
  void for_each_block(const Visit& visit) const {
    for (const BlockDefinition* const block : {mixer, feed_forward}) {
      if (block != nullptr) {
        visit(*block);
      }
    }
  }

  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

/// "attention+mlp", "attention", "mlp".
std::string layer_name(const LayerSpec& layer);

/// The layers of a model, first to last.
class LayerPattern {
 public:
  LayerPattern() = default;
  /// `count` layers of one kind: `spec.layers = 12`.
  LayerPattern(int64_t count, const LayerSpec& layer = {})  // NOLINT(google-explicit-constructor)
      : layers_(count > 0 ? static_cast<size_t>(count) : 0, layer) {}
  explicit LayerPattern(std::vector<LayerSpec> layers) : layers_(std::move(layers)) {}

  /// Parses names of layers, separated by blanks or commas: "attention+mlp*2 mlp". "x*n" repeats a
  /// layer, "(...)*n" a group; groups do not nest. A text of the letters M, *, - and E alone is a
  /// pattern as Nemotron-H has them: each letter a layer with one block, mamba, attention, mlp or
  /// moe. Throws ConfigError naming model.pattern and the mistake, also for more than 4096 layers.
  static LayerPattern parse(std::string_view text);
  /// Inverse of `parse`; runs of equal layers are written as one.
  std::string text() const;

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }
  const LayerSpec& operator[](int64_t layer) const { return layers_[static_cast<size_t>(layer)]; }
  auto begin() const { return layers_.begin(); }
  auto end() const { return layers_.end(); }

  /// The different layers, in the order of their first one.
  std::vector<LayerSpec> kinds() const;
  /// By layer: its index among `kinds`.
  std::vector<size_t> kind_indices() const;
  /// All layers are equal.
  bool is_uniform() const;
  /// Whether any layer has the block.
  bool has(const BlockDefinition& block) const;
  /// With the block `to` wherever a layer has `from`.
  LayerPattern replaced(const BlockDefinition& from, const BlockDefinition& to) const;
  int64_t num_blocks() const;

  /// About `count` of the layers, in their order: each kind in proportion, at least one of each.
  LayerPattern sample(int64_t count) const;

  friend bool operator==(const LayerPattern&, const LayerPattern&) = default;

 private:
  std::vector<LayerSpec> layers_;
};

}  // namespace braid
