#include "runtime/batch_inputs.h"

#include <algorithm>

#include "base/errors.h"
#include "ops/preference.h"
#include "parallel/parameter_layout.h"

namespace braid {

float loss_scale_of(const StepBatch& batch, int64_t depth) {
  int64_t valid = 0;
  for (int64_t rank = batch.rank_begin(); rank < batch.rank_end(); ++rank) {
    for (int64_t microbatch = 0; microbatch < batch.shape().num_microbatches; ++microbatch) {
      valid += count_labels(batch.labels(rank, microbatch), batch.sequence_tokens(), depth);
    }
  }
  return 1.0f / static_cast<float>(std::max<int64_t>(1, valid));
}

BatchInputs::BatchInputs(const RunSpec& run, int rank, const StepBatch& batch)
    : run_(run),
      batch_(batch),
      data_rank_(run.mesh.position(rank).data),
      shard_(context_shard(run.mesh, rank, run.parallel)),
      positions_(shard_.position_list(batch.sequence_tokens())) {}

std::vector<int32_t> BatchInputs::tokens(int64_t microbatch) const {
  return batch_.tokens_at(data_rank_, microbatch, positions_);
}

std::vector<int32_t> BatchInputs::labels(int64_t microbatch) const {
  return batch_.labels_at(data_rank_, microbatch, positions_);
}

std::vector<int32_t> BatchInputs::document_starts(int64_t microbatch) const {
  return batch_.document_starts_at(data_rank_, microbatch, positions_);
}

std::vector<int32_t> BatchInputs::exchanged_document_starts(int64_t microbatch) const {
  return batch_.document_starts_at(data_rank_, microbatch,
                                   shard_.outer_shard().position_list(batch_.sequence_tokens()));
}

std::vector<float> BatchInputs::reference(int64_t microbatch) const {
  const std::span<const int32_t> labels = batch_.labels(data_rank_, microbatch);
  const auto sequence = static_cast<size_t>(batch_.sequence_tokens());
  std::vector<float> inputs;
  for (const float reference : batch_.references(data_rank_, microbatch)) {
    const auto of_sequence = labels.subspan(inputs.size() / kReferenceColumns * sequence, sequence);
    const int64_t answer =
        std::max<int64_t>(count_labels(of_sequence, batch_.sequence_tokens(), 0), 1);
    inputs.push_back(reference);
    inputs.push_back(run_.averages_answers() ? 1.0f / static_cast<float>(answer) : 1.0f);
  }
  return inputs;
}

void BatchInputs::fill(const StepExchange::Values& values) const {
  for (int64_t microbatch = 0; microbatch < run_.num_microbatches; ++microbatch) {
    const auto fill = [&](auto to, auto part_of) {
      if (to.empty()) {
        return;
      }
      const auto part = (this->*part_of)(microbatch);
      check(to.size() == part.size() * static_cast<size_t>(run_.num_microbatches),
            "{} inputs of a microbatch for {} microbatches of {}", part.size(),
            run_.num_microbatches, to.size());
      std::ranges::copy(part, to.begin() + microbatch * std::ssize(part));
    };
    fill(values.tokens, &BatchInputs::tokens);
    fill(values.labels, &BatchInputs::labels);
    fill(values.reference, &BatchInputs::reference);
    fill(values.document_starts, &BatchInputs::document_starts);
    fill(values.exchanged_document_starts, &BatchInputs::exchanged_document_starts);
  }
  if (!values.mtp_labels.empty()) {
    fill_mtp(values);
  }
}

/// Shifted tokens and labels of multi-token prediction.
void BatchInputs::fill_mtp(const StepExchange::Values& values) const {
  auto tokens = values.mtp_tokens.begin();
  auto labels = values.mtp_labels.begin();
  for (int64_t depth = 1; depth <= run_.model.mtp_depth; ++depth) {
    for (int64_t microbatch = 0; microbatch < run_.num_microbatches; ++microbatch) {
      const auto shifted = [&](std::span<const int32_t> from, int32_t beyond) {
        return take_positions(shift_sequences(from, batch_.sequence_tokens(), depth, beyond),
                              batch_.sequence_tokens(), positions_);
      };
      tokens = std::ranges::copy(shifted(batch_.tokens(data_rank_, microbatch), 0), tokens).out;
      labels = std::ranges::copy(shifted(batch_.labels(data_rank_, microbatch), -1), labels).out;
    }
  }
  check(labels == values.mtp_labels.end() && tokens == values.mtp_tokens.end(),
        "tokens of multi-token prediction: {} of {}", labels - values.mtp_labels.begin(),
        values.mtp_labels.size());
}

}  // namespace braid
