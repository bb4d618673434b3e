#include "data/blended_dataset.h"

#include <utility>

#include "base/errors.h"

namespace braid {

BlendedDataset::BlendedDataset(std::vector<const SampleSource*> corpora,
                               std::span<const double> shares, int64_t num_samples)
    : corpora_(std::move(corpora)),
      order_(build_blend_order(shares, num_samples)),
      counts_(corpora_.size(), 0) {
  check(corpora_.size() == shares.size(), "{} corpora with {} shares", corpora_.size(),
        shares.size());
  for (const int16_t corpus : order_.corpus) {
    ++counts_[static_cast<size_t>(corpus)];
  }
  for (size_t i = 0; i < corpora_.size(); ++i) {
    check(counts_[i] <= corpora_[i]->num_samples(), "corpus {} has {} samples, the blend takes {}",
          i, corpora_[i]->num_samples(), counts_[i]);
    check(corpora_[i]->sequence_tokens() == sequence_tokens(), "samples of {} and {} tokens",
          corpora_[i]->sequence_tokens(), sequence_tokens());
  }
}

void BlendedDataset::read(int64_t sample, std::span<int32_t> tokens,
                          std::span<int32_t> labels) const {
  check(sample >= 0 && sample < num_samples(), "sample {} of {}", sample, num_samples());
  const auto at = static_cast<size_t>(sample);
  corpora_[static_cast<size_t>(order_.corpus[at])]->read(order_.sample[at], tokens, labels);
}

}  // namespace braid
