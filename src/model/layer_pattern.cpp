#include "model/layer_pattern.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "model/blocks/registry.h"

namespace braid {
namespace {

constexpr size_t kMaxLayers = 4096;  // of model.layers

std::string block_names(BlockRole role) {
  std::vector<std::string_view> names;
  for (const BlockDefinition* const block : all_blocks()) {
    if (block->role == role) {
      names.push_back(block->name);
    }
  }
  return join(names, ", ");
}

/// The layer that a letter of Nemotron-H's patterns stands for.
std::optional<LayerSpec> layer_of_letter(char letter) {
  switch (letter) {
    case 'M':
      return LayerSpec{.mixer = &kMambaBlock, .feed_forward = nullptr};
    case '*':
      return LayerSpec{.mixer = &kAttentionBlock, .feed_forward = nullptr};
    case '-':
      return LayerSpec{.mixer = nullptr, .feed_forward = &kMlpBlock};
    case 'E':
      return LayerSpec{.mixer = nullptr, .feed_forward = &kMoeBlock};
    default:
      return std::nullopt;
  }
}

bool has_letters_only(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char c) { return layer_of_letter(c).has_value(); });
}

class PatternParser {
 public:
  explicit PatternParser(std::string_view text) : text_(text) {}

  std::vector<LayerSpec> parse() {
    std::vector<LayerSpec> layers;
    if (has_letters_only(text_)) {
      for (const char letter : text_) {
        append(layers, {*layer_of_letter(letter)}, 1);
      }
      return layers;
    }
    for (skip_blanks(); at_ < text_.size(); skip_blanks()) {
      std::vector<LayerSpec> part = text_[at_] == '(' ? read_group() : read_layers();
      append(layers, part, 1);
    }
    return layers;
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw_config_error("model.pattern = {}: {}", quote(text_, 200),
                       fmt::format(format, std::forward<Args>(args)...));
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == ',')) {
      ++at_;
    }
  }

  void append(std::vector<LayerSpec>& layers, const std::vector<LayerSpec>& part,
              size_t count) const {
    if (part.size() * count > kMaxLayers - std::min(kMaxLayers, layers.size())) {
      refuse("more than {} layers", kMaxLayers);
    }
    for (size_t i = 0; i < count; ++i) {
      layers.insert(layers.end(), part.begin(), part.end());
    }
  }

  /// The number of an "*" that may follow; 1 if there is none.
  size_t read_count() {
    if (at_ == text_.size() || text_[at_] != '*') {
      return 1;
    }
    size_t count = 0;
    const char* const begin = text_.data() + at_ + 1;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), count);
    if (error != std::errc() || count < 1 || count > kMaxLayers) {
      refuse("\"*\" needs a number from 1 to {} behind it", kMaxLayers);
    }
    at_ = static_cast<size_t>(end - text_.data());
    return count;
  }

  std::vector<LayerSpec> read_group() {
    const size_t close = text_.find(')', ++at_);
    if (close == std::string_view::npos) {
      refuse("\"(\" without \")\"");
    }
    std::vector<LayerSpec> group;
    for (skip_blanks(); at_ < close; skip_blanks()) {
      if (text_[at_] == '(') {
        refuse("a group inside a group");
      }
      append(group, read_layers(), 1);
    }
    at_ = close + 1;
    std::vector<LayerSpec> layers;
    append(layers, group, read_count());
    return layers;
  }

  /// One name and its repeat count.
  std::vector<LayerSpec> read_layers() {
    const size_t end = std::min(text_.find_first_of(" ,*()", at_), text_.size());
    const LayerSpec layer = layer_of(text_.substr(at_, end - at_));
    at_ = end;
    std::vector<LayerSpec> layers;
    append(layers, {layer}, read_count());
    return layers;
  }

  LayerSpec layer_of(std::string_view name) const {
    const size_t plus = name.find('+');
    LayerSpec layer{.mixer = nullptr, .feed_forward = nullptr};
    if (plus != std::string_view::npos) {
      layer.mixer = &block_of(name.substr(0, plus), BlockRole::kMixer);
      layer.feed_forward = &block_of(name.substr(plus + 1), BlockRole::kFeedForward);
    } else if (const BlockDefinition& block = block_of(name, std::nullopt);
               block.role == BlockRole::kMixer) {
      layer.mixer = &block;
    } else {
      layer.feed_forward = &block;
    }
    return layer;
  }

  const BlockDefinition& block_of(std::string_view name, std::optional<BlockRole> role) const {
    const BlockDefinition* const block = find_block(name);
    if (block == nullptr || (role && block->role != *role)) {
      refuse(
          "{} is no block that braid has here; a layer is a mixer ({}), a feed-forward ({}), or "
          "both as \"MIXER+FEED_FORWARD\"",
          quote(name), block_names(BlockRole::kMixer), block_names(BlockRole::kFeedForward));
    }
    return *block;
  }

  std::string_view text_;
  size_t at_ = 0;
};

/// How many of `count` layers each kind gets: its share rounded down, at least one. Remaining
/// layers go to the kinds that lose most by rounding.
std::vector<int64_t> shares_of(const std::vector<int64_t>& numbers, int64_t all, int64_t count) {
  std::vector<int64_t> shares;
  std::vector<std::pair<int64_t, size_t>> losses;
  int64_t left = count;
  for (size_t kind = 0; kind < numbers.size(); ++kind) {
    const int64_t share = std::max<int64_t>(numbers[kind] * count / all, 1);
    losses.emplace_back(share * all - numbers[kind] * count, kind);
    shares.push_back(share);
    left -= share;
  }
  std::ranges::sort(losses);
  for (size_t i = 0; i < losses.size() && left > 0; ++i, --left) {
    ++shares[losses[i].second];
  }
  return shares;
}

}  // namespace

std::string layer_name(const LayerSpec& layer) {
  std::string name;
  layer.for_each_block([&](const BlockDefinition& block) {
    name += name.empty() ? "" : "+";
    name += block.name;
  });
  return name;
}

LayerPattern LayerPattern::parse(std::string_view text) {
  return LayerPattern(PatternParser(text).parse());
}

std::string LayerPattern::text() const {
  std::string text;
  for (size_t first = 0; first < layers_.size();) {
    size_t last = first;
    while (last + 1 < layers_.size() && layers_[last + 1] == layers_[first]) {
      ++last;
    }
    text += first == 0 ? "" : " ";
    text += layer_name(layers_[first]);
    text += last > first ? fmt::format("*{}", last - first + 1) : "";
    first = last + 1;
  }
  return text;
}

std::vector<LayerSpec> LayerPattern::kinds() const {
  std::vector<LayerSpec> kinds;
  for (const LayerSpec& layer : layers_) {
    if (std::ranges::find(kinds, layer) == kinds.end()) {
      kinds.push_back(layer);
    }
  }
  return kinds;
}

std::vector<size_t> LayerPattern::kind_indices() const {
  const std::vector<LayerSpec> all = kinds();
  std::vector<size_t> indices;
  indices.reserve(layers_.size());
  for (const LayerSpec& layer : layers_) {
    indices.push_back(static_cast<size_t>(std::ranges::find(all, layer) - all.begin()));
  }
  return indices;
}

bool LayerPattern::is_uniform() const {
  return std::ranges::all_of(layers_,
                             [&](const LayerSpec& layer) { return layer == layers_.front(); });
}

bool LayerPattern::has(const BlockDefinition& block) const {
  return std::ranges::any_of(layers_, [&](const LayerSpec& layer) {
    return layer.mixer == &block || layer.feed_forward == &block;
  });
}

LayerPattern LayerPattern::replaced(const BlockDefinition& from, const BlockDefinition& to) const {
  std::vector<LayerSpec> layers = layers_;
  for (LayerSpec& layer : layers) {
    for (const BlockDefinition** const block : {&layer.mixer, &layer.feed_forward}) {
      *block = *block == &from ? &to : *block;
    }
  }
  return LayerPattern(std::move(layers));
}

int64_t LayerPattern::num_blocks() const {
  int64_t blocks = 0;
  for (const LayerSpec& layer : layers_) {
    blocks += layer.num_blocks();
  }
  return blocks;
}

LayerPattern LayerPattern::sample(int64_t count) const {
  if (count >= size()) {
    return *this;
  }
  const std::vector<size_t> indices = kind_indices();
  std::vector<int64_t> numbers(kinds().size(), 0);
  for (const size_t kind : indices) {
    ++numbers[kind];
  }
  const std::vector<int64_t> shares = shares_of(numbers, size(), count);
  std::vector<int64_t> seen(numbers.size(), 0);
  std::vector<LayerSpec> chosen;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const size_t kind = indices[layer];
    const int64_t before = seen[kind]++ * shares[kind] / numbers[kind];
    if (seen[kind] * shares[kind] / numbers[kind] > before) {
      chosen.push_back(layers_[layer]);
    }
  }
  return LayerPattern(std::move(chosen));
}

}  // namespace braid
