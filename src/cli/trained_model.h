#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "config/run_config.h"
#include "data/tokenizer.h"
#include "generate/causal_model.h"
#include "generate/decoder.h"
#include "hugging_face/tensor_folder.h"
#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "state/adapted_state.h"
#include "state/state_source.h"

namespace braid {

/// A trained model on the disk, with its tokenizer: a checkpoint, the newest one of a run folder or
/// a folder of checkpoints, or a Hugging Face folder of weights.
class TrainedModel {
 public:
  /// Which of a checkpoint.
  enum class Weights : uint8_t {
    kLast,      ///< those of its step
    kAverages,  ///< averages (optimizer.ema)
  };

  /// `tokenizer`: instead of the model's own; empty: its own. Throws DataError if there is no
  /// model, and ConfigError naming --tokenizer if the tokenizer has more ids than the model, or
  /// --ema if there are no averages.
  TrainedModel(const std::string& path, const std::string& tokenizer,
               Weights weights = Weights::kLast);

  /// Of the checkpoint, or the folder.
  const std::string& path() const { return path_; }
  const ModelSpec& model() const { return model_; }
  /// Of the run; of a Hugging Face folder, that of an import.
  const RunConfig& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const StateSource& weights() const { return *weights_; }

 private:
  void open_checkpoint(Weights weights);
  void open_hugging_face();

  std::string path_;
  std::unique_ptr<LoadedCheckpoint> checkpoint_;
  std::unique_ptr<HfTensorFolder> files_;
  RunConfig config_;
  ModelSpec model_;
  ParameterLayout layout_;
  std::unique_ptr<StateSource> averaged_;  // of a checkpoint, from which averages are taken
  std::unique_ptr<BaseWeights> base_;      // of a checkpoint of adapters,
  std::unique_ptr<StateSource> adapters_;  // and these
  std::unique_ptr<StateSource> weights_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

/// Largest --context: that of train.sequence.
inline constexpr int64_t kMostContextTokens = 1 << 24;

/// What `generate` and `eval` let the user choose about the forward.
struct ForwardArguments {
  std::string device;   ///< empty: as in the run, or the CPU if this machine lacks the GPU
  int64_t context = 0;  ///< tokens of a sequence; 0: as many as in training
};

/// The device of `arguments.device`, or that of the run. It may run on a machine that cannot train
/// the model: a GPU in the run file counts as "auto" here, and a requested GPU computes in bfloat16
/// whatever dtype the run used. Throws ConfigError for a device that is not there.
Device forward_device(const ForwardArguments& arguments, RunConfig config);

/// Tokens of a sequence. Throws ConfigError if the model has fewer learned positions.
int64_t context_tokens(const TrainedModel& trained, const ForwardArguments& arguments);

/// Loads the model onto the device; `computes_loss` as in CausalModelOptions. Throws ConfigError
/// for a device that is not there, a context longer than the model's learned positions, and as
/// CausalModel.
std::unique_ptr<CausalModel> load_causal_model(const TrainedModel& trained,
                                               const ForwardArguments& arguments,
                                               bool computes_loss = false);
/// The same for continuing `num_sequences` texts at once.
std::unique_ptr<Decoder> load_decoder(const TrainedModel& trained,
                                      const ForwardArguments& arguments, int64_t num_sequences);

}  // namespace braid
