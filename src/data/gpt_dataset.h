#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/sample_order.h"

namespace braid {

/// Samples by index, for the batch loader. Reading must be thread-safe.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  /// T: tokens and labels of one sample.
  virtual int64_t sequence_tokens() const = 0;
  virtual int64_t num_samples() const = 0;
  /// Fills `tokens` [T] and `labels` [T] of sample 0 <= sample < num_samples().
  virtual void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const = 0;
  /// Of pairs of answers: the log-probability of the sample's labels in the reference model.
  virtual float reference(int64_t /*sample*/) const { return 0; }
};

/// Samples of one corpus, epoch after epoch.
class CorpusSamples : public SampleSource {
 public:
  /// Text that differs for other orders of the samples of one dataset, range, sequence and seed.
  virtual std::string order() const = 0;
  /// Tokens of an epoch's samples.
  virtual int64_t tokens_per_epoch() const = 0;
};

/// Sequences of the training, validation and test parts.
using DatasetSplit = std::array<SequenceRange, 3>;

/// Splits `num_sequences` by "a,b,c": weights of the training, validation and test parts,
/// normalised to sum 1; missing ones are 0. Bounds are round(fraction * num_sequences), halves to
/// even, as in Megatron-LM. Throws ConfigError naming `option` unless the text is one to three
/// numbers >= 0 with a sum above 0.
DatasetSplit split_sequences(std::string_view weights, int64_t num_sequences,
                             std::string_view option = "data.split");

struct GptDatasetOptions {
  std::string name = "training";  ///< the part's name in messages
  int64_t sequence_tokens = 0;    ///< T
  int64_t num_samples = 0;        ///< at least this many; epochs repeat as needed. 0: one epoch
  uint64_t seed = 0;
  int64_t vocabulary_size = 0;  ///< tokens at or above it are an error when read; 0: unchecked
  /// Given: a dataset of the same sequences, with 0 for tokens that are no labels. It must outlive
  /// the GptDataset.
  const IndexedDataset* mask = nullptr;
};

/// The lengths of the sequences of the range. Throws as the constructor of GptDataset, except for
/// the number of tokens.
std::vector<int32_t> checked_lengths(const IndexedDataset& dataset, SequenceRange range,
                                     const GptDatasetOptions& options);

/// Samples of T tokens from a range of sequences, in the order of `build_sample_order`.
class GptDataset final : public CorpusSamples {
 public:
  /// `dataset` must outlive this. Throws ConfigError if T or the number of samples is out of range,
  /// DataError if the range has no sequence, too few tokens for one sample, or the mask other
  /// sequences.
  GptDataset(const IndexedDataset& dataset, SequenceRange range, const GptDatasetOptions& options);

  int64_t sequence_tokens() const override { return sequence_tokens_; }
  /// The requested number; for one epoch, its full samples.
  int64_t num_samples() const override { return num_samples_; }
  int64_t num_epochs() const { return order_.num_epochs; }
  /// "200 samples in 2 epochs, the last one shuffled apart".
  std::string order() const override;
  /// Tokens of the range, counted once.
  int64_t tokens_per_epoch() const override { return tokens_per_epoch_; }
  /// `labels` are `tokens` shifted by one: labels[i] follows tokens[i], and is -1 if the mask is 0.
  /// Throws DataError as IndexedDataset::read.
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const override;

 private:
  /// Fills `out` with elements of the sequences from `at` on, and moves `at` behind them.
  void read_from(const IndexedDataset& dataset, SamplePosition& at, int64_t end,
                 std::span<int32_t> out) const;

  const IndexedDataset& dataset_;
  const IndexedDataset* mask_;
  SequenceRange range_;
  int64_t sequence_tokens_;
  int64_t vocabulary_size_;
  int64_t tokens_per_epoch_ = 0;
  int64_t num_samples_ = 0;
  SampleOrder order_;
};

}  // namespace braid
