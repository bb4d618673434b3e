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

struct TrainerOptions {
  std::function<void(std::string_view)>
      print;              ///< receives everything meant for the terminal, "\n" included
  bool terminal = false;  ///< `print` goes to a terminal: draw a progress bar unless told otherwise
  /// Called after each step, by the first process of several.
  std::function<void(const StepRecord&)> on_step = {};
  std::function<bool()> stop_requested;  ///< asked after each step; true: save and return (SIGTERM)
  std::optional<int64_t>
      stop_after_step;  ///< save and return after this step as if asked to stop then
  /// Those of the run, where each rank has its own; null: this one has all ranks. It is finished,
  /// or aborted, when `train` ends.
  ProcessGroup* processes = nullptr;
  int local_process = 0;  ///< which of those of its host this one is
  std::function<void(EngineOptions&)> adjust_engine = {};  ///< tests: last word on its options
};

struct TrainingSummary {
  int64_t last_step = 0;
  bool stopped_early = false;
  double first_eval_loss =
      0;  ///< held-out loss before the first step of the run, nats per token; 0 if never evaluated
  double last_eval_loss = 0;
  double unigram_entropy =
      0;  ///< of the held-out tokens: what a model without context could reach at best
  double tokens_per_s = 0;                 ///< median over the steps of this process
  std::string traced_step;                 ///< where the last traced one went; empty: none was
  std::vector<std::string> communication;  ///< of the last traced step: hidden or why not, by kind
  std::string run_folder;
  std::string report;      ///< the page of the run
  std::string checkpoint;  ///< newest one; empty if none was written
};

/// `braid train`: plans, prints the resolved configuration and the plan, trains from scratch or
/// from the newest checkpoint, evaluates, checkpoints, writes logs, trace and report into the run
/// folder. `config` as loaded; it is validated and resolved here. Throws ConfigError before
/// anything is written if it cannot run, DataError for files, DeviceError for a failed step (the
/// newest checkpoint is then intact). Of several processes, which all call it alike, the first one
/// prints and writes; all get the errors of any (AbortedError where it is another one's).
TrainingSummary train(const RunConfig& config, const TrainerOptions& options);

}  // namespace braid
