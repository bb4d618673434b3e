#include "data/packed_dataset.h"

#include <algorithm>
#include <numeric>

#include "base/errors.h"
#include "base/text.h"
#include "data/random_state.h"

namespace braid {

PackedDataset::PackedDataset(const IndexedDataset& dataset, SequenceRange range,
                             const GptDatasetOptions& options, int32_t pad)
    : dataset_(dataset),
      mask_(options.mask),
      range_(range),
      sequence_tokens_(options.sequence_tokens),
      vocabulary_size_(options.vocabulary_size),
      pad_(pad),
      packing_(pack_best_fit(checked_lengths(dataset, range, options), sequence_tokens_)) {
  if (packing_.num_samples() == 0) {
    throw_data_error(
        "the {} part of '{}' has no document of two tokens, of which the second is a label; give "
        "longer documents, or set data.packing = \"concatenate\"",
        options.name, dataset.prefix());
  }
  shuffle(options.num_samples, options.seed);
}

void PackedDataset::shuffle(int64_t num_samples, uint64_t seed) {
  RandomState random(seed);
  for (size_t i = 0; i + 1 < packing_.first_pieces.size(); ++i) {
    const auto begin = static_cast<size_t>(packing_.first_pieces[i]);
    const auto end = static_cast<size_t>(packing_.first_pieces[i + 1]);
    random.shuffle(std::span(packing_.pieces).subspan(begin, end - begin));
  }
  const auto wanted = static_cast<size_t>(num_samples > 0 ? num_samples : packing_.num_samples());
  std::vector<uint32_t> epoch(static_cast<size_t>(packing_.num_samples()));
  while (order_.size() < wanted) {
    std::iota(epoch.begin(), epoch.end(), 0u);
    random.shuffle(std::span(epoch));
    const size_t taken = std::min(epoch.size(), wanted - order_.size());
    order_.insert(order_.end(), epoch.begin(), epoch.begin() + static_cast<std::ptrdiff_t>(taken));
  }
}

std::string PackedDataset::order() const {
  return fmt::format("{} samples of {} packed by best fit", order_.size(), packing_.num_samples());
}

std::string PackedDataset::describe() const {
  const auto samples = static_cast<double>(packing_.num_samples());
  const double filled = static_cast<double>(packing_.packed_tokens) /
                        (samples * static_cast<double>(sequence_tokens_));
  return fmt::format(
      "{} documents in {} sequences: {:.2f}% of them cut, {:.2f}% of the positions "
      "empty",
      format_count(range_.size()), format_count(packing_.num_samples()),
      100.0 * static_cast<double>(packing_.cut_documents) / static_cast<double>(range_.size()),
      100.0 * (1.0 - filled));
}

void PackedDataset::read(int64_t sample, std::span<int32_t> tokens,
                         std::span<int32_t> labels) const {
  const auto count = static_cast<size_t>(sequence_tokens_);
  check(sample >= 0 && sample < num_samples(), "sample {} of {}", sample, num_samples());
  check(tokens.size() == count && labels.size() == count, "sample of {} tokens into {} and {}",
        count, tokens.size(), labels.size());
  const size_t packed = order_[static_cast<size_t>(sample)];
  size_t at = 0;
  for (auto i = static_cast<size_t>(packing_.first_pieces[packed]);
       i < static_cast<size_t>(packing_.first_pieces[packed + 1]); ++i) {
    const auto size = static_cast<size_t>(packing_.pieces[i].tokens);
    read_piece(packing_.pieces[i], tokens.subspan(at, size), labels.subspan(at, size));
    at += size;
  }
  std::fill(tokens.begin() + static_cast<std::ptrdiff_t>(at), tokens.end(), pad_);
  std::fill(labels.begin() + static_cast<std::ptrdiff_t>(at), labels.end(), -1);
}

void PackedDataset::read_piece(const PackedPiece& piece, std::span<int32_t> tokens,
                               std::span<int32_t> labels) const {
  const int64_t sequence = range_.begin + piece.document;
  const bool is_cut = piece.offset_tokens + piece.tokens < dataset_.index().length(sequence);
  // One more than the piece where the document goes on: the label of its last token.
  std::vector<int32_t> read(tokens.size() + (is_cut ? 1 : 0));
  dataset_.read(sequence, piece.offset_tokens, read, vocabulary_size_);
  std::copy_n(read.begin(), tokens.size(), tokens.begin());
  std::fill(labels.begin(), labels.end(), -1);
  std::copy(read.begin() + 1, read.end(), labels.begin());
  if (mask_ != nullptr) {
    mask_->read(sequence, piece.offset_tokens, read, 2);
    for (size_t i = 0; i + 1 < read.size(); ++i) {
      labels[i] = read[i + 1] == 0 ? -1 : labels[i];
    }
  }
}

}  // namespace braid
