#pragma once

#include <cstdint>
#include <vector>

namespace braid {

// What blend_golden.py prints: a blend of three corpora by weight.
inline const std::vector<double> kGoldenWeights = {5, 3, 2};
inline constexpr int64_t kGoldenSamples = 20;
/// Samples to ask of each corpus.
inline const std::vector<int64_t> kGoldenRequests = {11, 7, 5};
/// By sample of the blend: the corpus, the number of the sample in its order, and its first token.
inline const std::vector<int16_t> kGoldenCorpus = {0, 1, 2, 0, 1, 0, 2, 0, 1, 0,
                                                   0, 1, 2, 0, 1, 0, 2, 0, 1, 0};
inline const std::vector<int64_t> kGoldenSample = {0, 0, 0, 1, 1, 2, 1, 3, 2, 4,
                                                   5, 3, 2, 6, 4, 7, 3, 8, 5, 9};
inline const std::vector<int32_t> kGoldenFirstTokens = {6,  116, 208, 10, 108, 3, 204, 12, 112, 14,
                                                        17, 104, 224, 8,  100, 6, 200, 2,  120, 7};

}  // namespace braid
