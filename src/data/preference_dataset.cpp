#include "data/preference_dataset.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/errors.h"
#include "base/text.h"
#include "data/random_state.h"

namespace braid {
namespace {

/// "0.20%".
std::string share_text(int64_t part, int64_t whole) {
  return part == 0 ? "0%"
                   : fmt::format("{:.2f}%",
                                 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

constexpr std::string_view kAdvice =
    "make it with `braid tokenize --chat TEMPLATE --preference` from lines of \"prompt\", "
    "\"chosen\" "
    "and \"rejected\"";

}  // namespace

PreferencePairs::PreferencePairs(const IndexedDataset& dataset, const IndexedDataset& mask,
                                 int64_t sequence_tokens, int64_t vocabulary_size, int32_t pad)
    : dataset_(dataset),
      mask_(mask),
      sequence_tokens_(sequence_tokens),
      vocabulary_size_(vocabulary_size),
      pad_(pad) {
  const int64_t documents = dataset.index().num_sequences();
  checked_lengths(dataset, dataset.all_sequences(),
                  {.sequence_tokens = sequence_tokens, .mask = &mask});
  if (documents % 2 != 0) {
    throw_data_error("'{}' has {} documents, which are not pairs of answers; {}", dataset.prefix(),
                     documents, kAdvice);
  }
  for (int64_t pair = 0; pair < documents / 2; ++pair) {
    prompts_.push_back(static_cast<int32_t>(prompt_tokens(2 * pair)));
    check_prompts(pair);
  }
}

/// Tokens in front of the first one of the answer. Throws DataError if no token is of an answer.
int64_t PreferencePairs::prompt_tokens(int64_t document) const {
  std::vector<int32_t> mask(static_cast<size_t>(dataset_.index().length(document)));
  mask_.read(document, 0, mask, 2);
  const auto answer = std::ranges::find(mask, 1);
  if (answer == mask.end() || mask.size() < 2) {
    throw_data_error("document {} of '{}' has no answer; {}", document, dataset_.prefix(), kAdvice);
  }
  return answer - mask.begin();
}

void PreferencePairs::check_prompts(int64_t pair) const {
  const auto size = static_cast<size_t>(prompts_.back());
  bool same = prompt_tokens(2 * pair + 1) == prompts_.back();
  if (same) {
    std::vector<int32_t> prompt(size);
    std::vector<int32_t> other(size);
    dataset_.read(2 * pair, 0, prompt, vocabulary_size_);
    dataset_.read(2 * pair + 1, 0, other, vocabulary_size_);
    same = prompt == other;
  }
  if (!same) {
    throw_data_error(
        "documents {} and {} of '{}' have different prompts, so they are no pair of answers; {}",
        2 * pair, 2 * pair + 1, dataset_.prefix(), kAdvice);
  }
}

AnswerPiece PreferencePairs::piece(int64_t document) const {
  const int64_t pair = document / 2;
  const int64_t room = sequence_tokens_ + 1;
  const int64_t length = dataset_.index().length(document);
  const int64_t longest =
      std::max<int64_t>(dataset_.index().length(2 * pair), dataset_.index().length(2 * pair + 1));
  const int64_t prompt = prompts_[static_cast<size_t>(pair)];
  const int64_t cut = std::clamp<int64_t>(longest - room, 0, std::max<int64_t>(prompt - 1, 0));
  return {.offset_tokens = cut, .tokens = std::min(length - cut, room)};
}

void PreferencePairs::read(int64_t sample, std::span<int32_t> tokens,
                           std::span<int32_t> labels) const {
  const auto count = static_cast<size_t>(sequence_tokens_);
  check(sample >= 0 && sample < num_samples(), "sample {} of {}", sample, num_samples());
  check(tokens.size() == count && labels.size() == count, "sample of {} tokens into {} and {}",
        count, tokens.size(), labels.size());
  const AnswerPiece from = piece(sample);
  std::vector<int32_t> read(static_cast<size_t>(from.tokens));
  std::vector<int32_t> mask(read.size());
  dataset_.read(sample, from.offset_tokens, read, vocabulary_size_);
  mask_.read(sample, from.offset_tokens, mask, 2);
  std::ranges::fill(tokens, pad_);
  std::ranges::fill(labels, -1);
  std::copy_n(read.begin(), std::min(read.size(), count), tokens.begin());
  for (size_t i = 0; i + 1 < read.size(); ++i) {
    labels[i] = mask[i + 1] == 0 ? -1 : read[i + 1];
  }
}

std::string PreferencePairs::describe() const {
  int64_t cut_prompts = 0;
  int64_t cut_answers = 0;
  int64_t filled = 0;
  for (int64_t document = 0; document < num_samples(); ++document) {
    const AnswerPiece kept = piece(document);
    const int64_t length = dataset_.index().length(document);
    cut_prompts += document % 2 == 0 && kept.offset_tokens > 0 ? 1 : 0;
    cut_answers += kept.offset_tokens + kept.tokens < length ? 1 : 0;
    filled += std::min(kept.tokens, sequence_tokens_);
  }
  const int64_t positions = num_samples() * sequence_tokens_;
  return fmt::format(
      "{} pairs: {} of the prompts cut at their start, {} of the answers at their end, {} of the "
      "positions empty",
      format_count(num_pairs()), share_text(cut_prompts, num_pairs()),
      share_text(cut_answers, num_samples()), share_text(positions - filled, positions));
}

PreferenceDataset::PreferenceDataset(const PreferencePairs& pairs, SequenceRange range,
                                     const GptDatasetOptions& options)
    : pairs_(pairs), range_(range) {
  if (range.size() == 0) {
    throw_data_error("the {} part of the pairs is empty: there are {}; give more, or other shares",
                     options.name, pairs.num_pairs());
  }
  constexpr int64_t kMaxSamples = std::numeric_limits<uint32_t>::max() / 2;
  if (options.num_samples % 2 != 0 || options.num_samples < 0 ||
      options.num_samples > kMaxSamples) {
    throw_config_error(
        "{} {} samples of pairs: train.steps x train.global_batch must be even, and 0 to {}",
        options.num_samples, options.name, kMaxSamples);
  }
  const auto wanted =
      static_cast<size_t>(options.num_samples > 0 ? options.num_samples / 2 : range.size());
  RandomState random(options.seed);
  std::vector<uint32_t> epoch(static_cast<size_t>(range.size()));
  while (order_.size() < wanted) {
    std::iota(epoch.begin(), epoch.end(), static_cast<uint32_t>(range.begin));
    random.shuffle(std::span(epoch));
    const size_t taken = std::min(epoch.size(), wanted - order_.size());
    order_.insert(order_.end(), epoch.begin(), epoch.begin() + static_cast<std::ptrdiff_t>(taken));
  }
}

std::string PreferenceDataset::order() const {
  return fmt::format("pairs {} to {}", range_.begin, range_.end);
}

int64_t PreferenceDataset::tokens_per_epoch() const {
  int64_t tokens = 0;
  for (int64_t document = 2 * range_.begin; document < 2 * range_.end; ++document) {
    tokens += std::min(pairs_.piece(document).tokens, sequence_tokens());
  }
  return tokens;
}

int64_t PreferenceDataset::document(int64_t sample) const {
  check(sample >= 0 && sample < num_samples(), "sample {} of {}", sample, num_samples());
  return 2 * int64_t{order_[static_cast<size_t>(sample / 2)]} + sample % 2;
}

void PreferenceDataset::read(int64_t sample, std::span<int32_t> tokens,
                             std::span<int32_t> labels) const {
  pairs_.read(document(sample), tokens, labels);
}

float PreferenceDataset::reference(int64_t sample) const {
  check(reference_ != nullptr, "the reference log-probabilities of the pairs are not there");
  return reference_->at(static_cast<size_t>(document(sample)));
}

}  // namespace braid
