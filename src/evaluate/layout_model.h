#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "evaluate/sequence_scorer.h"
#include "model/model_spec.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include "state/state_source.h"

namespace braid {

/// The configuration of a run that only evaluates `model` in the layout of `config`, in sequences
/// of `context` tokens on `device`: without what belongs to training alone (data, optimizer state,
/// losses of routers, FP8), with recomputation, and with the smallest batch of whole pairs that the
/// schedule allows. The evaluation program is that of learning from pairs (preference.loss), which
/// has a sum for each sequence.
RunConfig evaluation_config(RunConfig config, const ModelSpec& model, int64_t context,
                            const Device& device);

/// A trained model on all ranks of a run, in any layout of training, by the evaluation program of
/// `braid train`. Memory: that of a training step of the smallest batch, without moments. All
/// processes make the same calls. Not thread-safe.
class LayoutModel final : public SequenceScorer {
 public:
  struct Options {
    ProcessGroup* processes =
        nullptr;            ///< of the run, or one with all ranks; must outlive the model
    int local_process = 0;  ///< as in TrainerOptions
  };

  /// `config` is that of `evaluation_config`. Throws ConfigError if it cannot be planned, does not
  /// fit into memory, or if processes differ.
  LayoutModel(const RunConfig& config, const ModelSpec& model, const StateSource& weights,
              const Options& options);

  int64_t max_tokens() const override;
  int64_t sequences_at_once() const override;
  std::vector<SequenceScore> score(std::span<const ScoredSequence> sequences) override;

 private:
  std::vector<SequenceScore> score_batch(std::span<const ScoredSequence> sequences);

  std::unique_ptr<Engine> engine_;
};

}  // namespace braid
