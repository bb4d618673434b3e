#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "config/run_config.h"
#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "state/state_shards.h"
#include "state/state_source.h"

namespace braid {

/// Writes weights under the parameters' names and optimizer state under "<name>.exp_avg" and
/// "<name>.exp_avg_sq", without the padding rows of the vocabulary, so that a checkpoint does not
/// depend on the layout of the run. Frozen weights are not written: the run's configuration names
/// where they are. The shards together are the state of `layout`, the model as one
/// rank would hold it, without moments that are zero, as before the first step. Each shard is
/// written by its own thread, in the process that has its source: `options.together` connects these
/// processes. See `save_checkpoint`. Throws DataError naming tensor and element if a weight or a
/// moment is NaN or infinite; the checkpoints that were there are then unchanged.
///
/// Host memory: `checkpoint_host_bytes`, for any size of the model. The next piece is read from the
/// source while the previous one is written to the file.
std::string save_model_state(const std::string& folder, const CheckpointState& progress,
                             const ParameterLayout& layout, const ModelSpec& model,
                             std::span<const StateShard> shards, const SaveOptions& options);

/// Host memory that `save_model_state` holds at once, for all shards together: two pieces of
/// state_transfer.h, or two of the largest parameter if that is smaller. (Loading holds one piece
/// and its rounded copy, see `write_state`.)
int64_t checkpoint_host_bytes(const ParameterLayout& layout);

/// Whether a tensor is a weight. Users of the weights alone pass it to a checkpoint, so that the
/// optimizer's files are not read.
bool is_weight(std::string_view tensor);

/// The same for users of the averages of weights, or of both.
bool is_weight_or_average(std::string_view tensor);

/// Whether the checkpoint has averages of weights (optimizer.ema).
bool has_averages(const LoadedCheckpoint& checkpoint);

/// The model of a checkpoint: from its configuration, with the vocabulary size of its embedding,
/// whatever tokenizer is present now. An earlier version's model has no scaled rotary frequencies.
ModelSpec checkpointed_model(const LoadedCheckpoint& checkpoint, const RunConfig& config);

/// Reads what `save_model_state` of this version or an earlier one wrote, for any layout; of a
/// model with adapters only those (state/adapted_state.h has the rest). Padding rows of the
/// vocabulary are 0. If gate rows were stored before up rows (StoredState::version), weights and
/// moments are converted to the current order.
class CheckpointedState final : public StateSource {
 public:
  /// All arguments must outlive this object. Throws DataError naming the tensor that is missing,
  /// has another shape or is unknown to the model, as in a checkpoint of another model. A
  /// checkpoint without any tensor of a moment has zeros in its place: an optimizer may keep one
  /// moment, or none. One without averages has none.
  /// Without `reads_moments`, moments are zeros in any case.
  CheckpointedState(const LoadedCheckpoint& checkpoint, const ParameterLayout& layout,
                    const ModelSpec& model, bool reads_moments = true);

  bool is_zero(StatePart part) const override {
    return (part == StatePart::kExpAvg && !has_exp_avg_) ||
           (part == StatePart::kExpAvgSq && !has_exp_avg_sq_) ||
           (part == StatePart::kEma && !has_ema_);
  }
  /// Also throws DataError for NaN and infinity, which braid has not written since it checks.
  void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool& workers) const override;

 private:
  void fill(const StoredTensor& stored, const Parameter& parameter, int64_t first,
            std::span<float> values) const;
  void fill_in_turns(const StoredTensor& stored, int64_t first, std::span<float> values) const;

  const LoadedCheckpoint& checkpoint_;
  const ParameterLayout& layout_;
  bool has_exp_avg_ = false;
  bool has_exp_avg_sq_ = false;
  bool has_ema_ = false;
  bool has_gates_in_front_ = false;
  std::string what_;  // of errors
};

}  // namespace braid
