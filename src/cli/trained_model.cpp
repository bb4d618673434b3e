#include "cli/trained_model.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "checkpoint/checkpoint_path.h"
#include "config/choices.h"
#include "hugging_face/model_config.h"
#include "model/parameters.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include "runtime/memory_check.h"
#include "state/averaged_weights.h"
#include "state/checkpointing.h"
#include "state/hugging_face_source.h"
#include "state/import_weights.h"
#include "state/recorded_config.h"

namespace braid {
namespace {

void check_tokenizer(const Tokenizer& tokenizer, const ModelSpec& model, const std::string& path) {
  if (tokenizer.vocabulary_size() > model.vocabulary) {
    throw_config_error(
        "--tokenizer: '{}' has {} ids, but the vocabulary of the model in {} has {}; give the "
        "tokenizer that the model was trained with",
        tokenizer.name(), tokenizer.vocabulary_size(), path, model.vocabulary);
  }
}

CausalModelOptions forward_options(const ForwardArguments& arguments, RunConfig config) {
  config.parallel.ranks = 1;
  const Device device = forward_device(arguments, config);
  const int threads = threads_per_rank(config.runtime.threads, 1);
  const RunMemory memory = free_memory(device, threads);
  return {.threads = threads,
          .device = device,
          .cache_folder = user_cache_folder(),
          .free_bytes = memory.gpu ? memory.gpu->free_bytes : memory.host_bytes};
}

}  // namespace

Device forward_device(const ForwardArguments& arguments, RunConfig config) {
  const FoundGpus gpus = find_gpus();
  config.parallel = {};
  if (arguments.device.empty()) {
    const Backend* const named = named_backend(config);
    if (named != nullptr && !named->is_host) {
      config.runtime.device = choice_name(DeviceChoice::kAuto);
    }
    return choose_device(config, gpus);
  }
  config.runtime.device = arguments.device;
  const Backend* const named = named_backend(config);
  if (named != nullptr && !named->is_host) {
    if (gpus.usable.empty()) {
      throw_config_error("--device {}: {}; give --device {}", named->name, gpus.why_none,
                         host_backend().name);
    }
    config.train.dtype = choice_name(named->dtypes.front());
  }
  return choose_device(config, gpus);
}

int64_t context_tokens(const TrainedModel& trained, const ForwardArguments& arguments) {
  const int64_t tokens =
      arguments.context == 0 ? trained.config().train.sequence : arguments.context;
  const int64_t positions = trained.model().max_positions;
  const bool are_learned = trained.model().style.positions == PositionKind::kLearned;
  if (are_learned && tokens > positions) {
    throw_config_error(
        "--context {}: the model has {} learned positions; give --context {} or less", tokens,
        positions, positions);
  }
  return tokens;
}

TrainedModel::TrainedModel(const std::string& path, const std::string& tokenizer, Weights weights) {
  const std::optional<std::string> checkpoint = checkpoint_at(path);
  const bool is_hugging_face = !checkpoint && std::filesystem::exists(path + "/config.json");
  path_ = is_hugging_face ? path : find_checkpoint(path);
  if (is_hugging_face) {
    if (weights == Weights::kAverages) {
      throw_config_error(
          "--ema: {} is a Hugging Face folder, which has no averages of weights; "
          "leave the option out",
          path);
    }
    open_hugging_face();
  } else {
    open_checkpoint(weights);
  }
  tokenizer_ = load_tokenizer(tokenizer.empty() ? config_.data.tokenizer : tokenizer);
  check_tokenizer(*tokenizer_, model_, path_);
}

void TrainedModel::open_checkpoint(Weights weights) {
  const bool averages = weights == Weights::kAverages;
  checkpoint_ =
      std::make_unique<LoadedCheckpoint>(path_, averages ? is_weight_or_average : is_weight);
  config_ = recorded_config(checkpoint_->state(), path_ + "/state.json");
  model_ = checkpointed_model(*checkpoint_, config_);
  layout_ = make_parameter_layout(model_parameters(model_));
  weights_ = std::make_unique<CheckpointedState>(*checkpoint_, layout_, model_);
  if (averages) {
    averaged_ = std::move(weights_);
    weights_ = std::make_unique<AveragedWeights>(*averaged_, path_);
  }
  if (model_.lora.is_on()) {
    adapters_ = std::move(weights_);
    base_ = std::make_unique<BaseWeights>(config_.lora.base, model_,
                                          static_cast<uint64_t>(config_.train.seed));
    weights_ = std::make_unique<AdaptedState>(*base_, *adapters_, layout_);
  }
}

void TrainedModel::open_hugging_face() {
  const HfConfig hf = read_hf_config(path_);
  model_ = hf.model;
  config_ = imported_run(hf, path_);
  files_ = std::make_unique<HfTensorFolder>(path_);
  layout_ = make_parameter_layout(model_parameters(model_));
  weights_ = std::make_unique<HuggingFaceSource>(*files_, layout_, model_);
}

std::unique_ptr<CausalModel> load_causal_model(const TrainedModel& trained,
                                               const ForwardArguments& arguments,
                                               bool computes_loss) {
  const int64_t tokens = context_tokens(trained, arguments);
  CausalModelOptions options = forward_options(arguments, trained.config());
  options.computes_loss = computes_loss;
  return std::make_unique<CausalModel>(trained.model(), trained.weights(), tokens, options);
}

std::unique_ptr<Decoder> load_decoder(const TrainedModel& trained,
                                      const ForwardArguments& arguments, int64_t num_sequences) {
  const int64_t tokens = context_tokens(trained, arguments);
  return std::make_unique<Decoder>(trained.model(), trained.weights(), tokens, num_sequences,
                                   forward_options(arguments, trained.config()));
}

}  // namespace braid
