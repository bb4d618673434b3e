#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/best_fit.h"
#include "data/gpt_dataset.h"

namespace braid {

/// Samples of T tokens that hold whole documents, packed by `pack_best_fit`. Each epoch has the
/// same samples, in an order of its own. The documents of a sample are in an order drawn once;
/// behind them comes `pad`. The last token of a document and what comes behind have no label (-1);
/// a document's cut does.
class PackedDataset final : public CorpusSamples {
 public:
  /// `dataset` must outlive this. Throws as GptDataset, and DataError if no document of the range
  /// has two tokens.
  PackedDataset(const IndexedDataset& dataset, SequenceRange range,
                const GptDatasetOptions& options, int32_t pad);

  int64_t sequence_tokens() const override { return sequence_tokens_; }
  /// The requested number; for one epoch, all samples.
  int64_t num_samples() const override { return static_cast<int64_t>(order_.size()); }
  std::string order() const override;
  int64_t tokens_per_epoch() const override { return packing_.packed_tokens; }
  /// "14.3K documents in 9.24K sequences: 1.2% of them cut, 0.31% of the positions empty".
  std::string describe() const;
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const override;

 private:
  void shuffle(int64_t num_samples, uint64_t seed);
  void read_piece(const PackedPiece& piece, std::span<int32_t> tokens,
                  std::span<int32_t> labels) const;

  const IndexedDataset& dataset_;
  const IndexedDataset* mask_;
  SequenceRange range_;
  int64_t sequence_tokens_;
  int64_t vocabulary_size_;
  int32_t pad_;
  BestFitPacking packing_;
  std::vector<uint32_t> order_;  // of the packing's samples, epoch after epoch
};

}  // namespace braid
