#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

/// Where a sample starts: an entry of the document index, and a token inside that sequence.
struct SamplePosition {
  int64_t position = 0;
  int64_t offset_tokens = 0;

  friend bool operator==(const SamplePosition&, const SamplePosition&) = default;
};

struct SampleOrderOptions {
  int64_t sequence_tokens =
      0;  ///< T, at least 1; a sample reads T + 1 tokens and shares one with the next
  int64_t num_samples = 0;  ///< N wanted; 0 asks for one epoch
  uint64_t seed = 0;        ///< the low 32 bits count
};

/// Which tokens each sample reads, and in which order samples are taken, as Megatron-LM's
/// GPTDataset has it: sequences of one or more epochs in random order, laid end to end, cut into
/// samples, and the samples in random order.
struct SampleOrder {
  int64_t num_epochs = 0;
  bool separate_final_epoch =
      false;  ///< the last epoch is shuffled apart, as little of it is needed
  std::vector<int32_t> document_index;  ///< sequences of all epochs, in order of reading
  std::vector<SamplePosition>
      sample_index;  ///< n + 1 entries: where sample i starts and, at i + 1, its last token
  std::vector<uint32_t> shuffle_index;  ///< n entries: the sample that is taken i-th; n >= N
};

/// `lengths` are the tokens of each sequence. The tokens must give at least one sample
/// (InternalError otherwise: callers check it first, where the file and the option can be named).
/// Source: Megatron-LM core/datasets/gpt_dataset.py.
SampleOrder build_sample_order(std::span<const int32_t> lengths, const SampleOrderOptions& options);

}  // namespace braid
