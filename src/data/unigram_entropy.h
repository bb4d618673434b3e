#pragma once

#include <cstdint>
#include <span>

#include "data/indexed_dataset.h"

namespace braid {

/// Entropy of the token frequencies, -sum p ln p, in nats per token: the loss of the best model
/// that ignores context. A lower held-out loss shows that a model has learnt from context. 0 for no
/// tokens. Tokens must be >= 0.
double unigram_entropy(std::span<const int32_t> tokens);

/// Sequences of a dataset that give this share of the tokens of a mixture, in (0, 1].
struct MixturePart {
  const IndexedDataset& dataset;
  SequenceRange range;
  double share = 1;
};

/// The same of the tokens of a mixture: of the mean of the parts' token frequencies by share.
/// Throws DataError as IndexedDataset::read.
double unigram_entropy(std::span<const MixturePart> parts);

}  // namespace braid
