#include "data/sample_order.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/errors.h"
#include "data/random_state.h"

namespace braid {
namespace {

/// Smallest number of epochs with tokens for N samples and the one token after the last.
int64_t count_epochs(int64_t tokens_per_epoch, const SampleOrderOptions& options) {
  const int64_t needed_tokens = options.num_samples * options.sequence_tokens + 1;
  return std::max<int64_t>(1, (needed_tokens + tokens_per_epoch - 1) / tokens_per_epoch);
}

/// The document index is shuffled over all epochs at once, or over all but the last and then the
/// last alone.
std::vector<int32_t> build_document_index(size_t num_sequences, const SampleOrder& order,
                                          RandomState& random) {
  std::vector<int32_t> index(num_sequences * static_cast<size_t>(order.num_epochs));
  for (size_t i = 0; i < index.size(); ++i) {
    index[i] = static_cast<int32_t>(i % num_sequences);
  }
  const std::span<int32_t> all(index);
  const size_t head = order.separate_final_epoch ? index.size() - num_sequences : index.size();
  random.shuffle(all.first(head));
  random.shuffle(all.subspan(head));
  return index;
}

/// Walks over the sequences T tokens at a time. A sample's last token is the first of the next one.
std::vector<SamplePosition> build_sample_index(std::span<const int32_t> lengths,
                                               std::span<const int32_t> document_index,
                                               int64_t sequence_tokens, int64_t num_samples) {
  std::vector<SamplePosition> index;
  index.reserve(static_cast<size_t>(num_samples) + 1);
  SamplePosition at;
  index.push_back(at);
  for (int64_t sample = 0; sample < num_samples; ++sample) {
    int64_t remaining = sequence_tokens + 1;
    while (true) {
      const int64_t available = lengths[document_index[at.position]] - at.offset_tokens;
      if (available >= remaining) {
        at.offset_tokens += remaining - 1;
        break;
      }
      remaining -= available;
      ++at.position;
      at.offset_tokens = 0;
    }
    index.push_back(at);
  }
  return index;
}

std::vector<uint32_t> build_shuffle_index(size_t num_head, size_t num_total, RandomState& random) {
  std::vector<uint32_t> index(num_total);
  std::iota(index.begin(), index.end(), 0u);
  const std::span<uint32_t> all(index);
  random.shuffle(all.first(num_head));
  random.shuffle(all.subspan(num_head));
  return index;
}

}  // namespace

SampleOrder build_sample_order(std::span<const int32_t> lengths,
                               const SampleOrderOptions& options) {
  const int64_t seq = options.sequence_tokens;
  const int64_t tokens_per_epoch = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  check(seq >= 1 && tokens_per_epoch > seq, "{} tokens give no sample of {} + 1 tokens",
        tokens_per_epoch, seq);
  check(lengths.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()),
        "{} sequences do not fit 31 bits", lengths.size());
  SampleOrder order;
  order.num_epochs = count_epochs(tokens_per_epoch, options);
  const int64_t num_total = (order.num_epochs * tokens_per_epoch - 1) / seq;
  const int64_t num_before_final = ((order.num_epochs - 1) * tokens_per_epoch - 1) / seq;
  check(num_total <= std::numeric_limits<uint32_t>::max(), "{} samples do not fit 32 bits",
        num_total);
  if (order.num_epochs > 1) {
    const int64_t num_per_epoch = (tokens_per_epoch - 1) / seq;
    const auto threshold = static_cast<int64_t>(0.80 * static_cast<double>(num_per_epoch));
    order.separate_final_epoch = options.num_samples - num_before_final < threshold;
  }
  const auto num_head =
      static_cast<size_t>(order.separate_final_epoch ? num_before_final : num_total);
  RandomState random(options.seed);  // used in this order: documents, samples
  order.document_index = build_document_index(lengths.size(), order, random);
  order.sample_index = build_sample_index(lengths, order.document_index, seq, num_total);
  order.shuffle_index = build_shuffle_index(num_head, static_cast<size_t>(num_total), random);
  return order;
}

}  // namespace braid
