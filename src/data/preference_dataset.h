#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/gpt_dataset.h"

namespace braid {

/// The part of a document that becomes a sample.
struct AnswerPiece {
  int64_t offset_tokens = 0;
  int64_t tokens = 0;

  friend bool operator==(const AnswerPiece&, const AnswerPiece&) = default;
};

/// Pairs of documents with the same prompt, as `braid tokenize --preference` writes them: document
/// 2p has the preferred answer of pair p, document 2p + 1 the rejected one. Each is a sequence of T
/// tokens; behind it comes `pad`. Labels are the tokens of the answer, others are -1. If one of a
/// pair has more than T + 1 tokens, both lose as many at the start of the prompt, which keeps one
/// token; an answer that is still too long is cut at its end.
class PreferencePairs final : public SampleSource {
 public:
  /// Both datasets must outlive this. Reads the mask and the prompts. Throws DataError naming the
  /// file unless it has whole pairs, each with one prompt and two answers, and ConfigError if T is
  /// out of range.
  PreferencePairs(const IndexedDataset& dataset, const IndexedDataset& mask,
                  int64_t sequence_tokens, int64_t vocabulary_size, int32_t pad);

  int64_t sequence_tokens() const override { return sequence_tokens_; }
  int64_t num_pairs() const { return static_cast<int64_t>(prompts_.size()); }
  /// Answers in the order of the file: sample i is document i.
  int64_t num_samples() const override { return 2 * num_pairs(); }
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const override;

  AnswerPiece piece(int64_t document) const;
  /// "990 pairs: 0.20% lose the start of their prompt, 0% the end of an answer, 43.2% of the
  /// positions empty".
  std::string describe() const;

 private:
  int64_t prompt_tokens(int64_t document) const;
  void check_prompts(int64_t pair) const;

  const IndexedDataset& dataset_;
  const IndexedDataset& mask_;
  int64_t sequence_tokens_;
  int64_t vocabulary_size_;
  int32_t pad_;
  std::vector<int32_t> prompts_;  // tokens, by pair
};

/// Samples of a range of pairs, epoch after epoch: sample 2i is the preferred answer of a pair and
/// 2i + 1 the rejected one. Each epoch has the same pairs, in an order of its own.
class PreferenceDataset final : public CorpusSamples {
 public:
  /// `range` is of pairs; `options.mask` is not read. `pairs` must outlive this. Throws DataError
  /// for an empty range, ConfigError for an odd or a too large number of samples.
  PreferenceDataset(const PreferencePairs& pairs, SequenceRange range,
                    const GptDatasetOptions& options);

  int64_t sequence_tokens() const override { return pairs_.sequence_tokens(); }
  int64_t num_samples() const override { return 2 * static_cast<int64_t>(order_.size()); }
  std::string order() const override;
  int64_t tokens_per_epoch() const override;
  void read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const override;
  /// The document of a sample.
  int64_t document(int64_t sample) const;

  /// Log-probabilities of the answers of all documents of the file in the reference model.
  using Reference = std::shared_ptr<const std::vector<float>>;
  void set_reference(Reference reference) { reference_ = std::move(reference); }
  /// Throws InternalError before `set_reference`.
  float reference(int64_t sample) const override;

 private:
  const PreferencePairs& pairs_;
  SequenceRange range_;
  std::vector<uint32_t> order_;  // pairs, epoch after epoch
  Reference reference_;
};

}  // namespace braid
