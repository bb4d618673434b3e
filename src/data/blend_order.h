#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

/// Which corpus each sample of a blend comes from: sample i is sample `sample[i]` of corpus
/// `corpus[i]`.
struct BlendOrder {
  std::vector<int16_t> corpus;
  std::vector<int64_t> sample;
};

/// Weights, each above 0, divided by their sum. The sum is NumPy's (pairwise in blocks of 8), so
/// that shares have the bits that Megatron-LM computes.
std::vector<double> normalized_weights(std::span<const double> weights);

/// Samples to take from each corpus for a blend of `num_samples`: ceil(num_samples * share), and
/// Megatron-LM's surplus of 0.5%, rounded up. The orders of a corpus' samples depend on this
/// number. Source: Megatron-LM core/datasets/blended_megatron_dataset_builder.py.
std::vector<int64_t> samples_per_corpus(std::span<const double> shares, int64_t num_samples);

/// Sample i comes from the corpus that has had the fewest samples beside its share: with the
/// largest share * max(i, 1) - samples so far, the first of several. Each corpus gives its samples
/// in its own order. So the first samples of a longer blend are those of a shorter one, and no
/// corpus gives more than ceil(num_samples * share). `shares` sum up to 1 but for rounding, and are
/// normalised once more, as there. At most 32767 corpora. Source: build_blending_indices of
/// Megatron-LM core/datasets/helpers.cpp.
BlendOrder build_blend_order(std::span<const double> shares, int64_t num_samples);

}  // namespace braid
