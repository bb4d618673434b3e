#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/gpt_dataset.h"

namespace braid {

/// The division of one step's samples among the ranks of the data-parallel group, microbatches, and
/// rows.
struct BatchShape {
  int64_t num_ranks = 1;         ///< data-parallel size
  int64_t num_microbatches = 1;  ///< per rank and step
  int64_t microbatch = 1;        ///< B, samples

  int64_t samples_per_step() const { return num_ranks * num_microbatches * microbatch; }
};

/// First of the B consecutive samples of a rank's microbatch in a step that starts at sample
/// `consumed_samples`. Megatron-LM's "single" sampler: samples in global order; of each slice of
/// num_ranks * B samples, rank r takes [r * B, (r + 1) * B). So a step's set of samples does not
/// depend on the number of ranks.
int64_t first_sample_of(const BatchShape& shape, int64_t consumed_samples, int64_t rank,
                        int64_t microbatch_index);

/// Selects the elements at `positions` of every sequence in `values` [B, sequence_tokens], in this
/// order: [B, positions]. For a rank that shares sequences with others.
std::vector<int32_t> take_positions(std::span<const int32_t> values, int64_t sequence_tokens,
                                    std::span<const int64_t> positions);

/// Element t of every sequence in `values` [B, sequence_tokens] becomes element t + shift; `beyond`
/// where that lies behind the end. For multi-token prediction (model/mtp.h).
std::vector<int32_t> shift_sequences(std::span<const int32_t> values, int64_t sequence_tokens,
                                     int64_t shift, int32_t beyond);

/// Labels that are not ignored (not negative), without the first `skipped` of every sequence.
int64_t count_labels(std::span<const int32_t> labels, int64_t sequence_tokens, int64_t skipped);

/// The data of one step for a range of ranks. Owns [ranks, microbatches, B, T] int32, twice.
class StepBatch {
 public:
  StepBatch(const BatchShape& shape, int64_t rank_begin, int64_t rank_end, int64_t sequence_tokens,
            int64_t consumed_samples);

  /// Tokens [B, T] of a rank's microbatch; rank_begin <= rank < rank_end.
  std::span<const int32_t> tokens(int64_t rank, int64_t microbatch_index) const;
  /// Labels [B, T]: labels[b][t] follows tokens[b][t].
  std::span<const int32_t> labels(int64_t rank, int64_t microbatch_index) const;

  /// SampleSource::reference [B] of the samples of a rank's microbatch.
  std::span<const float> references(int64_t rank, int64_t microbatch_index) const;

  /// The token that ends a document.
  void set_eod(std::optional<int32_t> eod) { eod_ = eod; }

  /// The same at some positions of each sequence: [B, positions].
  std::vector<int32_t> tokens_at(int64_t rank, int64_t microbatch_index,
                                 std::span<const int64_t> positions) const;
  std::vector<int32_t> labels_at(int64_t rank, int64_t microbatch_index,
                                 std::span<const int64_t> positions) const;
  /// With an end of documents: where their documents begin (document_starts.h).
  std::vector<int32_t> document_starts_at(int64_t rank, int64_t microbatch_index,
                                          std::span<const int64_t> positions) const;

  /// T.
  int64_t sequence_tokens() const { return sequence_tokens_; }
  /// Samples of earlier steps, where this one starts.
  int64_t consumed_samples() const { return consumed_samples_; }
  const BatchShape& shape() const { return shape_; }
  int64_t rank_begin() const { return rank_begin_; }
  int64_t rank_end() const { return rank_end_; }

  /// Reads one row of one microbatch, row < B.
  void read_row(const SampleSource& source, int64_t rank, int64_t microbatch_index, int64_t row);

 private:
  size_t offset_elems(int64_t rank, int64_t microbatch_index) const;

  BatchShape shape_;
  int64_t rank_begin_;
  int64_t rank_end_;
  int64_t sequence_tokens_;
  int64_t consumed_samples_;
  std::optional<int32_t> eod_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> labels_;
  std::vector<float> references_;
};

struct BatchLoaderOptions {
  BatchShape shape;
  int64_t consumed_samples = 0;     ///< where to resume
  int64_t prefetch_steps = 2;       ///< steps to read ahead, at least 1
  int64_t rank_begin = 0;           ///< ranks whose data this process needs
  int64_t rank_end = 0;             ///< 0: all ranks
  std::optional<int32_t> eod = {};  ///< ends a document, if documents are separate
};

/// Reads the batches of later steps on its own thread. Deterministic: the result of `next` depends
/// only on the source and the options. Only one thread at a time may call `next`. The destructor
/// stops reading within one sample.
class BatchLoader {
 public:
  /// `source` must outlive this object. Throws ConfigError if a count of the shape is below 1.
  BatchLoader(const SampleSource& source, const BatchLoaderOptions& options);
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;
  ~BatchLoader();

  /// Waits for the next step's data and returns it. Nullopt if fewer samples than a step needs are
  /// left: the last partial step is dropped. Throws an error of the source at the step to which it
  /// belongs, and again at each later call.
  std::optional<StepBatch> next();

  /// Full steps between `consumed_samples` of the options and the end of the source.
  int64_t num_steps() const { return num_steps_; }

 private:
  struct Queue;

  int64_t num_steps_;
  std::unique_ptr<Queue> queue_;
};

}  // namespace braid
