#include "train/start_state.h"

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "config/load.h"
#include "plan/run_plan.h"
#include "state/checkpointing.h"
#include "state/initial_weights.h"
#include "train/run_folder.h"

namespace braid {
namespace {

/// The checkpoint that the first process found; empty: none.
std::string found_checkpoint(const CheckpointConfig& config, ProcessGroup& processes) {
  return processes.broadcast("the checkpoint to resume",
                             processes.leads() ? checkpoint_to_resume(config).value_or("") : "");
}

void check_batch(const CheckpointState& state, const std::string& path, const RunConfig& config) {
  const int64_t global_batch = config.train.global_batch;
  if (state.consumed_samples != state.step * global_batch) {
    throw_config_error(
        "train.global_batch = {}: the checkpoint {} took {} samples in {} steps; set {}, or "
        "checkpoint.resume = "
        "\"none\"",
        global_batch, path, state.consumed_samples, state.step,
        state.consumed_samples / std::max<int64_t>(1, state.step));
  }
}

/// Throws ConfigError unless the checkpoint's model is the run's. Shapes of tensors are not
/// sufficient: a model with more layers would load partially, and heads of another size have the
/// same matrices. Keys that may change when resuming (rope_theta, norm_epsilon) are not compared.
void check_model_of(const LoadedCheckpoint& checkpoint, const std::string& path,
                    const ModelSpec& model) {
  struct Key {
    const char* name;
    int64_t ModelSpec::*member;
  };
  constexpr Key kKeys[] = {
      {"width", &ModelSpec::width},       {"heads", &ModelSpec::heads},
      {"kv_heads", &ModelSpec::kv_heads}, {"head_size", &ModelSpec::head_size},
      {"ffn", &ModelSpec::ffn},
  };
  const ModelSpec there =
      checkpointed_model(checkpoint, parse_config(checkpoint.state().config, path + "/state.json"));
  const auto compare = [&](const char* key, const auto& here, const auto& saved) {
    if (here != saved) {
      throw_config_error(
          "model.{} = {}: the model of the checkpoint {} has {}; set model.{} = {}, or "
          "checkpoint.resume = \"none\"",
          key, here, path, saved, key, saved);
    }
  };
  compare("layers", model.layers.size(), there.layers.size());
  compare("pattern", quote(model.layers.text()), quote(there.layers.text()));
  for (const Key& key : kKeys) {
    compare(key.name, model.*key.member, there.*key.member);
  }
}

}  // namespace

StartState write_start_state(Engine& engine, const RunConfig& config, ProcessGroup& processes) {
  const RunPlan& plan = engine.plan();
  const std::string path = found_checkpoint(config.checkpoint, processes);
  if (path.empty()) {
    engine.write_state(
        InitialWeights(plan.layout, plan.run.model, static_cast<uint64_t>(config.train.seed)));
    return {};
  }
  const LoadedCheckpoint checkpoint(path);
  check_model_of(checkpoint, path, plan.run.model);
  check_batch(checkpoint.state(), path, config);
  engine.write_state(CheckpointedState(checkpoint, plan.layout, plan.run.model));
  return {.first_step = checkpoint.state().step + 1, .checkpoint = path};
}

}  // namespace braid
