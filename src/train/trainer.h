#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"
#include "report/records.h"

namespace braid {

class ProcessGroup;
struct EngineOptions;
struct SaveOptions;

struct TrainerOptions {
  std::function<void(std::string_view)>
      print;              ///< receives everything meant for the terminal, "\n" included
  bool terminal = false;  ///< `print` goes to a terminal: draws a progress bar unless configured
                          ///< otherwise
  /// Called after each step, only in the first process; again for steps that run again
  /// (runtime.rerun_steps).
  std::function<void(const StepRecord&)> on_step = {};
  std::function<bool()> stop_requested;  ///< called after each step; true: save and return
                                         ///< (SIGTERM)
  std::optional<int64_t>
      stop_after_step;  ///< save and return after this step, as if asked to stop then
  /// Keys that may have changed since the checkpoint although they make the run another one
  /// ("data.train"); empty: none (docs/checkpoints.md).
  std::vector<std::string> allowed_changes = {};
  std::string run_file;  ///< where the configuration comes from, for people; empty: not a file
  /// The processes of the run, if each rank has its own; null: this process has all ranks. `train`
  /// finishes or aborts it at its end.
  ProcessGroup* processes = nullptr;
  int local_process = 0;                                   ///< index of this process on its host
  std::function<void(EngineOptions&)> adjust_engine = {};  ///< for tests: changes the engine's
                                                           ///< options
  std::function<void(SaveOptions&)> adjust_save = {};      ///< for tests: of each checkpoint
};

struct TrainingSummary {
  int64_t last_step = 0;
  bool stopped_early = false;
  /// Held-out loss before the first step of the run, nats per token; nullopt if never evaluated.
  std::optional<double> first_eval_loss;
  std::optional<double> last_eval_loss;
  bool loss_of_pairs = false;  ///< held-out losses are means over pairs (preference.loss)
  double unigram_entropy =
      0;  ///< of the held-out tokens: the best loss that a model without context could reach
  double tokens_per_s = 0;                 ///< median over the steps of this process
  std::string traced_step;                 ///< path of the last traced step; empty: no step was
                                           ///< traced
  std::vector<std::string> communication;  ///< of the last traced step: hidden part and reasons for
                                           ///< the exposed part, by kind
  std::string run_folder;
  std::string report;      ///< the page of the run
  std::string checkpoint;  ///< the newest one; empty if none was written
};

/// `braid train`: plans, prints the resolved configuration and the plan, trains from scratch or
/// from the newest checkpoint, evaluates, checkpoints, and writes logs, trace and report into the
/// run folder. `config` as loaded; this function validates and resolves it. Throws ConfigError
/// before writing anything if it cannot run, DataError for files, DeviceError for a failed step
/// (the newest checkpoint is then intact). Several processes all call it with the same arguments;
/// the first one prints and writes. An error in one process ends all of them (the others throw
/// AbortedError).
TrainingSummary train(const RunConfig& config, const TrainerOptions& options);

}  // namespace braid
