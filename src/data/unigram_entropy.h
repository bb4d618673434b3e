#pragma once

#include <cstdint>
#include <span>

#include "data/indexed_dataset.h"

namespace braid {

/// Entropy of the token frequencies, -sum p ln p, in nats per token: the loss of the best model
/// that ignores context. A lower held-out loss shows that a model has learnt from context. 0 for no
/// tokens. Tokens must be >= 0.
double unigram_entropy(std::span<const int32_t> tokens);

/// The same over all tokens of a range of sequences. Throws DataError as IndexedDataset::read.
double unigram_entropy(const IndexedDataset& dataset, SequenceRange range);

}  // namespace braid
