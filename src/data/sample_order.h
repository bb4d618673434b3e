#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

/// The start of a sample: an entry of the document index, and a token inside that sequence.
struct SamplePosition {
  int64_t position = 0;
  int64_t offset_tokens = 0;

  friend bool operator==(const SamplePosition&, const SamplePosition&) = default;
};

struct SampleOrderOptions {
  int64_t sequence_tokens =
      0;  ///< T, at least 1; a sample reads T + 1 tokens and shares one with the next
  int64_t num_samples = 0;  ///< N, the requested number; 0: one epoch
  uint64_t seed = 0;        ///< the low 32 bits count
};

/// The tokens of each sample, and the order of samples, as in Megatron-LM's GPTDataset: sequences
/// of one or more epochs in random order, concatenated, cut into samples, and the samples in random
/// order.
struct SampleOrder {
  int64_t num_epochs = 0;
  bool separate_final_epoch =
      false;  ///< the last epoch is shuffled separately, because little of it is needed
  std::vector<int32_t> document_index;  ///< sequences of all epochs, in order of reading
  std::vector<SamplePosition>
      sample_index;  ///< n + 1 entries: start of sample i and, at i + 1, its last token
  std::vector<uint32_t> shuffle_index;  ///< n entries: the i-th sample in order; n >= N
};

/// `lengths` are the tokens of each sequence. The tokens must give at least one sample (otherwise
/// InternalError: callers check it first, because they can name the file and the option). Source:
/// Megatron-LM core/datasets/gpt_dataset.py.
SampleOrder build_sample_order(std::span<const int32_t> lengths, const SampleOrderOptions& options);

}  // namespace braid
