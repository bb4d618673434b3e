#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/blend_order.h"
#include "data/gpt_dataset.h"

namespace braid {

/// Samples of several corpora in the order of `build_blend_order`.
class BlendedDataset final : public SampleSource {
 public:
  /// `corpora`, at least one, must outlive this and have at least the `samples_per_corpus` of
  /// `num_samples`; all have samples of the same length. `shares` are from `normalized_weights`.
  BlendedDataset(std::vector<const SampleSource*> corpora, std::span<const double> shares,
                 int64_t num_samples);

  int64_t sequence_tokens() const override { return corpora_.front()->sequence_tokens(); }
  int64_t num_samples() const override { return static_cast<int64_t>(order_.corpus.size()); }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const override;

  /// How many samples of a corpus the blend has.
  int64_t samples_of(size_t corpus) const { return counts_[corpus]; }

 private:
  std::vector<const SampleSource*> corpora_;
  BlendOrder order_;
  std::vector<int64_t> counts_;  // by corpus
};

}  // namespace braid
