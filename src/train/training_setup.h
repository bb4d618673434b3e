#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/process_group.h"
#include "config/run_config.h"
#include "data/tokenizer.h"
#include "plan/run_plan.h"
#include "runtime/device.h"
#include "runtime/engine.h"
#include "train/training_data.h"

/// The decisions of a training run before its engine is made, in this order: checks that fail
/// quickly come first. All processes call each function.
namespace braid {

/// The tokenizer of the run, after checking that its data exist. Throws ConfigError if a process
/// has another configuration or build than the first, and what `check_source` and `load_tokenizer`
/// throw.
std::unique_ptr<Tokenizer> tokenizer_of_run(const RunConfig& config, ProcessGroup& processes);

/// Throws ConfigError if runtime.device is unavailable in any process, or if processes have other
/// libraries than the first.
Device device_of_process(const RunConfig& config, int local_process, ProcessGroup& processes);

/// The processes that passed the same name as this one (the `host_name` of theirs), ascending. All
/// processes call it; it is also a barrier.
std::vector<int> processes_of_host(ProcessGroup& processes, const std::string& host);

/// Receives texts for the terminal, "\n" included.
struct PlanOutput {
  std::function<void(std::string_view)> print;
  bool prints_plan = false;   ///< the whole description, before memory is checked
  bool progress_bar = false;  ///< through `print`, while overlap settings are tried
};

struct PlannedTraining {
  RunPlan plan;
  std::string description;  ///< configuration, device, programs, passes and memory
};

/// Plans with the chosen overlap and recomputation, before anything is allocated. Throws
/// ConfigError if the run cannot be planned, or does not fit into memory, and what
/// agree_on_programs throws.
PlannedTraining plan_training(const RunConfig& config, int64_t tokenizer_vocabulary,
                              const Device& device, ProcessGroup& processes,
                              const PlanOutput& output);

/// The first process creates missing files in the run folder, then the others open them. Throws
/// ConfigError if a process sees other data, or another tokenizer, than the first, and what
/// TrainingData throws.
TrainingData open_training_data(const RunConfig& config, const Tokenizer& tokenizer,
                                ProcessGroup& processes, const TrainingDataOptions& options);

/// The options of this process. `processes` must outlive the engine.
EngineOptions training_engine_options(const RunSpec& run, const Device& device,
                                      ProcessGroup& processes);

}  // namespace braid
