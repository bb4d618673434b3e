#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/batch_loader.h"
#include "model/context_shard.h"
#include "plan/run_spec.h"
#include "runtime/step_exchange.h"

namespace braid {

/// 1 / number of labels that are not ignored, over all ranks and microbatches; of those `depth` or
/// more behind the beginning of their sequence.
float loss_scale_of(const StepBatch& batch, int64_t depth = 0);

/// What one rank of a run reads of a batch, which has the data of all: its own tokens, at its own
/// positions of each sequence.
class BatchInputs {
 public:
  /// `run` and `batch` must outlive this object.
  BatchInputs(const RunSpec& run, int rank, const StepBatch& batch);

  /// Of a microbatch: [B, positions].
  std::vector<int32_t> tokens(int64_t microbatch) const;
  std::vector<int32_t> labels(int64_t microbatch) const;
  std::vector<int32_t> document_starts(int64_t microbatch) const;
  /// The same after the exchange of heads for sequence.
  std::vector<int32_t> exchanged_document_starts(int64_t microbatch) const;
  /// The input "reference" [B,2] (ops/preference.h).
  std::vector<float> reference(int64_t microbatch) const;

  /// Fills the tokens, labels, documents and references of all microbatches, as far as the rank has
  /// them: ranks with the embedding get tokens, ranks with the loss get labels.
  void fill(const StepExchange::Values& values) const;

 private:
  void fill_mtp(const StepExchange::Values& values) const;

  const RunSpec& run_;
  const StepBatch& batch_;
  int64_t data_rank_;
  ContextShard shard_;
  std::vector<int64_t> positions_;  // in a sequence
};

}  // namespace braid
