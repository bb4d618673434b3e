#include "data/gpt_dataset.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

[[noreturn]] void throw_split_error(std::string_view weights, std::string_view option) {
  throw_config_error(
      "{} = \"{}\" is not one to three numbers >= 0 with a sum above 0, such as \"969,30,1\" "
      "(training, validation, "
      "test)",
      option, weights);
}

std::array<double, 3> parse_weights(std::string_view weights, std::string_view option) {
  std::array<double, 3> values{};
  std::string_view rest = weights;
  for (double& value : values) {
    const size_t comma = rest.find(',');
    const std::string_view word = trim(rest.substr(0, comma));
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool is_number = error == std::errc() && end == word.data() + word.size();
    if (!is_number || !std::isfinite(value) || value < 0) {
      throw_split_error(weights, option);
    }
    if (comma == std::string_view::npos) {
      return values;
    }
    rest.remove_prefix(comma + 1);
  }
  throw_split_error(weights, option);  // a fourth number
}

std::vector<int32_t> lengths_of(const SequenceIndex& index, SequenceRange range) {
  std::vector<int32_t> lengths;
  lengths.reserve(static_cast<size_t>(range.size()));
  for (int64_t i = range.begin; i < range.end; ++i) {
    lengths.push_back(index.length(i));
  }
  return lengths;
}

void check_options(const GptDatasetOptions& options) {
  if (options.sequence_tokens < 1 ||
      options.sequence_tokens >= std::numeric_limits<int32_t>::max()) {
    throw_config_error(
        "a sample of {} tokens is impossible: train.sequence must be at least 1 and below 2^31 - 1",
        options.sequence_tokens);
  }
  // Limits the order of samples, which is in memory: 20 bytes each.
  constexpr int64_t kMaxSamples = std::numeric_limits<uint32_t>::max() / 2;
  if (options.num_samples < 0 || options.num_samples > kMaxSamples) {
    throw_config_error(
        "{} {} samples cannot be ordered: train.steps x train.global_batch must be 0 to {}",
        options.num_samples, options.name, kMaxSamples);
  }
}

/// Throws DataError unless the mask has the same sequences.
void check_mask(const IndexedDataset& dataset, const IndexedDataset& mask) {
  const int64_t count = dataset.index().num_sequences();
  bool same = mask.index().num_sequences() == count;
  for (int64_t i = 0; same && i < count; ++i) {
    same = mask.index().length(i) == dataset.index().length(i);
  }
  if (!same) {
    throw_data_error(
        "'{}' has other sequences than '{}', whose mask it is by its name; make both with one "
        "`braid tokenize --chat`",
        mask.prefix(), dataset.prefix());
  }
}

}  // namespace

DatasetSplit split_sequences(std::string_view weights, int64_t num_sequences,
                             std::string_view option) {
  const std::array<double, 3> values = parse_weights(weights, option);
  const double sum = values[0] + values[1] + values[2];
  if (!(sum > 0) || !std::isfinite(sum)) {
    throw_split_error(weights, option);
  }
  DatasetSplit split;
  double begin = 0;
  int64_t begin_sequence = 0;
  for (size_t i = 0; i < split.size(); ++i) {
    const double end = begin + values[i] / sum;
    const auto end_sequence =
        static_cast<int64_t>(std::nearbyint(end * static_cast<double>(num_sequences)));
    split[i] = {begin_sequence, end_sequence};
    begin = end;
    begin_sequence = end_sequence;
  }
  return split;
}

std::vector<int32_t> checked_lengths(const IndexedDataset& dataset, SequenceRange range,
                                     const GptDatasetOptions& options) {
  check(
      range.begin >= 0 && range.begin <= range.end && range.end <= dataset.index().num_sequences(),
      "range [{}, {}) of {} sequences", range.begin, range.end, dataset.index().num_sequences());
  check_options(options);
  if (options.mask != nullptr) {
    check_mask(dataset, *options.mask);
  }
  if (range.size() == 0) {
    throw_config_error(
        "the {} part of '{}' is empty: data.split gives it none of the {} documents; give more "
        "documents (blank lines separate those of a text file) or a larger share{}",
        options.name, dataset.prefix(), dataset.index().num_sequences(),
        options.name == "validation" ? ", or set eval.interval = 0" : "");
  }
  return lengths_of(dataset.index(), range);
}

GptDataset::GptDataset(const IndexedDataset& dataset, SequenceRange range,
                       const GptDatasetOptions& options)
    : dataset_(dataset),
      mask_(options.mask),
      range_(range),
      sequence_tokens_(options.sequence_tokens),
      vocabulary_size_(options.vocabulary_size) {
  const std::vector<int32_t> lengths = checked_lengths(dataset, range, options);
  tokens_per_epoch_ = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (tokens_per_epoch_ <= sequence_tokens_) {
    throw_data_error(
        "the {} part of '{}' has {} tokens, but one sample needs train.sequence + 1 = {}; give "
        "more text{}",
        options.name, dataset.prefix(), tokens_per_epoch_, sequence_tokens_ + 1,
        tokens_per_epoch_ > 1 ? fmt::format(", or set train.sequence = {}", tokens_per_epoch_ - 1)
                              : "");
  }
  order_ = build_sample_order(lengths, {.sequence_tokens = sequence_tokens_,
                                        .num_samples = options.num_samples,
                                        .seed = options.seed});
  num_samples_ = options.num_samples > 0 ? options.num_samples
                                         : static_cast<int64_t>(order_.shuffle_index.size());
}

std::string GptDataset::order() const {
  return fmt::format("{} samples in {} epochs, the last one shuffled {}",
                     order_.shuffle_index.size(), order_.num_epochs,
                     order_.separate_final_epoch ? "apart" : "with the others");
}

void GptDataset::read(int64_t sample, std::span<int32_t> tokens, std::span<int32_t> labels) const {
  const auto count = static_cast<size_t>(sequence_tokens_);
  check(sample >= 0 && sample < num_samples_, "sample {} of {}", sample, num_samples_);
  check(tokens.size() == count && labels.size() == count, "sample of {} tokens into {} and {}",
        count, tokens.size(), labels.size());
  const SamplePosition begin =
      order_.sample_index[order_.shuffle_index[static_cast<size_t>(sample)]];
  // Tokens 0 to T-1 go to `tokens`; labels are tokens 1 to T: a copy of all but the first, and one
  // more.
  SamplePosition at = begin;
  read_from(dataset_, at, vocabulary_size_, tokens);
  std::copy(tokens.begin() + 1, tokens.end(), labels.begin());
  read_from(dataset_, at, vocabulary_size_, labels.last(1));
  if (mask_ != nullptr) {
    at = begin;
    std::vector<int32_t> mask(count + 1);
    read_from(*mask_, at, 2, mask);
    for (size_t i = 0; i < count; ++i) {
      labels[i] = mask[i + 1] == 0 ? -1 : labels[i];
    }
  }
}

void GptDataset::read_from(const IndexedDataset& dataset, SamplePosition& at, int64_t end,
                           std::span<int32_t> out) const {
  while (!out.empty()) {
    const int64_t sequence = range_.begin + order_.document_index[static_cast<size_t>(at.position)];
    const int64_t available = dataset.index().length(sequence) - at.offset_tokens;
    const size_t part = std::min(out.size(), static_cast<size_t>(available));
    dataset.read(sequence, at.offset_tokens, out.first(part), end);
    out = out.subspan(part);
    at.offset_tokens += static_cast<int64_t>(part);
    if (part == static_cast<size_t>(available)) {
      ++at.position;
      at.offset_tokens = 0;
    }
  }
}

}  // namespace braid
