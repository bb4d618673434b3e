#include "runtime/start_state.h"

#include <algorithm>

#include "base/errors.h"
#include "checkpoint/checkpoint.h"
#include "plan/run_plan.h"
#include "runtime/run_folder.h"
#include "state/checkpointing.h"
#include "state/initial_weights.h"

namespace braid {
namespace {

/// Empty: none.
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

}  // namespace

StartState write_start_state(Engine& engine, const RunConfig& config, ProcessGroup& processes) {
  const RunPlan& plan = engine.plan();
  const std::string path = found_checkpoint(config.checkpoint, processes);
  if (path.empty()) {
    engine.write_state(
        InitialWeights(plan.layout, plan.model, static_cast<uint64_t>(config.train.seed)));
    return {};
  }
  const LoadedCheckpoint checkpoint(path);
  check_batch(checkpoint.state(), path, config);
  engine.write_state(CheckpointedState(checkpoint, plan.layout, plan.model));
  return {.first_step = checkpoint.state().step + 1, .checkpoint = path};
}

}  // namespace braid
