#include <memory>
#include <optional>

#include "api/run_state.h"
#include "api/step_result.h"
#include "comm/process_group.h"
#include "launch/launch.h"
#include "report/records.h"
#include "train/trainer.h"

namespace braid::api {
namespace {

TrainResult train_result(const TrainingSummary& summary) {
  TrainResult result;
  result.last_step = summary.last_step;
  result.stopped_early = summary.stopped_early;
  result.first_eval_loss = summary.first_eval_loss.value_or(0);
  result.last_eval_loss = summary.last_eval_loss.value_or(0);
  result.tokens_per_s = summary.tokens_per_s;
  result.run_folder = summary.run_folder;
  result.report = summary.report;
  result.checkpoint = summary.checkpoint;
  return result;
}

/// With the callbacks of the user, who answers "stop" through `stopped`. Both must outlive the
/// result.
TrainerOptions trainer_options(const TrainOptions& options, bool& stopped) {
  TrainerOptions result;
  result.print = [&options](std::string_view text) {
    if (options.on_output) {
      options.on_output(std::string(text));
    }
  };
  if (options.on_step) {
    result.on_step = [&options, &stopped](const StepRecord& record) {
      stopped = !options.on_step(step_result(record)) || stopped;
    };
  }
  result.stop_requested = [&stopped] { return stopped; };
  if (options.stop_after_step > 0) {
    result.stop_after_step = options.stop_after_step;
  }
  result.allowed_changes = options.allowed_changes;
  return result;
}

}  // namespace

TrainResult Run::train(const TrainOptions& options) const {
  return with_public_errors([&] {
    const RunConfig& config = state_->loaded;
    bool stopped = false;
    TrainerOptions trainer = trainer_options(options, stopped);
    const std::optional<Launch> launch = find_launch();
    if (!launch) {
      if (wants_processes(config)) {
        throw_config_error(
            "parallel.ranks = {}: this run has a process per rank; start {} of them by torchrun, "
            "mpirun or srun",
            config.parallel.ranks, config.parallel.ranks);
      }
      return train_result(braid::train(config, trainer));
    }
    check_launch(*launch, config);
    const std::unique_ptr<ProcessGroup> processes = connect_processes(*launch, config);
    trainer.processes = processes.get();
    trainer.local_process = launch->local_process;
    return train_result(braid::train(config, trainer));
  });
}

}  // namespace braid::api
